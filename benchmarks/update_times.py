"""Seconds that updates take on one batch of episodes, measured in turn.

What the cost benchmarks share: the episodes are the pocket model's own, sampled once;
every contestant then learns from them again and again. Contestants take turns, so that
a busy machine is busy for all of them; compare the minima.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping

PRESET = "pocket,grpo"
SIZE = {"rollout.num_groups": 16, "rollout.group_size": 8}


@dataclasses.dataclass
class Contestant:
    """An update, the state it is at, and what it took.

    Attributes:
      update: `(state, trajectory, key) -> (state, stats, credit)`.
      state: replaced by every call.
      seconds: of the calls so far.
      stats: of the last call.
    """

    update: Callable
    state: object
    seconds: list[float] = dataclasses.field(default_factory=list)
    stats: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def run(self, trajectory, key) -> float:
        """One update; returns its seconds, results fetched."""
        import jax

        began = time.perf_counter()
        self.state, stats, _ = self.update(self.state, trajectory, key)
        self.stats = jax.device_get(jax.block_until_ready((self.state, stats))[1])
        return time.perf_counter() - began

    def measure(self, trajectory, key) -> None:
        """One update that counts."""
        self.seconds.append(self.run(trajectory, key))


def build(changes: Mapping[str, object]):
    """A configuration with these changes, and the program built from it."""
    from configs import sokoban
    from ragen_jax.config import validate
    from ragen_jax.program.build import build_program

    config = sokoban.get_config(PRESET)
    config.update_from_flattened_dict(SIZE | dict(changes))
    validate(config)
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
