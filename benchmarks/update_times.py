"""Seconds that updates take on one batch of episodes, measured in turn.

What the cost benchmarks share: the episodes are the pocket model's own, sampled once;
every contestant then learns from them again and again. Contestants take turns, so that
a busy machine is busy for all of them; compare the minima.
"""

from collections.abc import Callable, Mapping

from benchmarks import runs


class Contestant:
    """An update and the state it is at.

    Args:
      update: `(state, trajectory, key) -> (state, stats, credit)`.
      state: replaced by every call.
    """

    def __init__(self, update: Callable, state):
        self._update, self._state = update, state

    def __call__(self, trajectory, key) -> Mapping[str, float]:
        """One update; returns its metrics."""
        import jax

        self._state, stats, _ = self._update(self._state, trajectory, key)
        return jax.device_get(jax.block_until_ready((self._state, stats))[1])


def build(changes: Mapping[str, object]):
    """A configuration with these changes, and the program built from it."""
    from ragen_jax.program.build import build_program

    config = runs.batch_config("pocket,grpo", changes)
    return config, build_program(config)


def print_table(rows: Mapping[str, list[float]], base: str, bounds) -> bool:
    """Print minima, medians and ratios to the base; whether all bounds hold."""
    import statistics

    least, is_kept = min(rows[base]), True
    print(f"{'update':<28}{'min s':>8}{'median s':>10}{'ratio':>8}{'at most':>9}")
    for name, seconds in rows.items():
        ratio, bound = min(seconds) / least, bounds.get(name)
        is_kept &= bound is None or ratio <= bound
        print(
            f"{name:<28}{min(seconds):>8.2f}{statistics.median(seconds):>10.2f}"
            f"{ratio:>8.2f}{'' if bound is None else format(bound, '9.2f')}"
        )
    return is_kept
