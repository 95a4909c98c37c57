"""Seconds per iteration, one at a time and several in one compiled program.

    python -m benchmarks.fused                  # pocket model, 16 x 8, 3 turns

Both ways start from the same state and take turns, so that a noisy machine slows both:
read the ratio. Times are of whole calls, results fetched, after a first call that
compiles; writing files and evaluating, which cost the same either way, are left out.
The status is 1 when the two end with different parameters.
"""

import time

from absl import flags

from launch import command

_BLOCKS = flags.DEFINE_integer("blocks", 5, "Measured blocks of iterations.")
_SIZE = flags.DEFINE_integer("size", 4, "Iterations in a compiled program.")


class Way:
    """A way to iterate, with a state of its own and the times it took."""

    def __init__(self, config, program, size: int):
        import jax
        import jax.numpy as jnp

        from ragen_jax.train import make_advance

        config.train.fused_iterations = size
        self._advance, self._size = make_advance(config, program), size
        self.state, self._done = jax.tree.map(jnp.copy, program.state), 0
        self.seconds: list[float] = []

    def run(self, count: int) -> None:
        """So many iterations; notes the seconds of one."""
        import jax

        began = time.perf_counter()
        for _ in range(count // self._size):
            self.state, told = self._advance(self.state, self._done)
            self._done += self._size
        jax.block_until_ready((self.state, [one.rollouts for one in told]))
        self.seconds.append((time.perf_counter() - began) / count)


def main(argv: list[str]) -> int:
    del argv
    import statistics

    from benchmarks.update_times import build
    from ragen_jax.runs.run import digest

    size = _SIZE.value
    config, program = build({"filter.keep_fraction": 0.25})
    ways = {f"k = {k}": Way(config, program, k) for k in (1, size)}
    for _ in range(1 + _BLOCKS.value):
        for way in ways.values():
            way.run(size)
    print(f"{'':<8}{'min s':>8}{'median s':>10}{'max s':>8}{'first s':>9}")
    for name, way in ways.items():
        first, *rest = way.seconds
        print(
            f"{name:<8}{min(rest):>8.3f}{statistics.median(rest):>10.3f}"
            f"{max(rest):>8.3f}{first * size:>9.1f}"
        )
    one, fused = (way.seconds[1:] for way in ways.values())
    ratios = [a / b for a, b in zip(one, fused, strict=True)]
    digests = {digest(way.state.params) for way in ways.values()}
    print(
        f"ratio of the minima {min(one) / min(fused):.3f}, "
        f"median ratio of neighbours {statistics.median(ratios):.3f}; "
        f"{len(digests)} set of parameters at the end, at most 1"
    )
    return 0 if len(digests) == 1 else 1


if __name__ == "__main__":
    command.run(main)
