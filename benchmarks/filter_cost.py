"""What an update costs when the filter keeps a share of the groups.

    python -m benchmarks.filter_cost

Compute must follow the kept share: with 25 % kept an update takes at most 40 % of the
time without a filter, and another number of kept groups compiles nothing. The status is
1 when either does not hold. All updates are one compiled program that leaves out groups
without reward spread; the rewards are replaced to choose how many those are.
"""

import functools

from absl import flags

from benchmarks import harness
from launch import command

_REPEATS = flags.DEFINE_integer("repeats", 5, "Measured updates of each kind.")

CHANGES = {"filter.keep_fraction": 1.0, "filter.keep_zero": False}
SHARES = (1.0, 0.5, 0.25, 0.125)
MOST = {"25 % kept": 0.4}


def spread(trajectory, num_groups: int, group_size: int):
    """The same episodes with rewards that differ inside the first groups only."""
    import jax.numpy as jnp

    rows = jnp.arange(trajectory.tokens.shape[0])[:, None]
    is_first = jnp.arange(trajectory.turns.reward.shape[1])[None] == 0
    is_kept = is_first & (rows < num_groups * group_size)
    reward = jnp.where(is_kept, rows % group_size / group_size, 0.0)
    turns = trajectory.turns.replace(reward=reward.astype(jnp.float32))
    return trajectory.replace(turns=turns)


def main(_: list[str]) -> int:
    import jax

    from benchmarks.update_times import Contestant, build, print_table

    config, program = build(CHANGES)
    rollout = config.rollout
    key = jax.random.key(config.seed)
    episodes = program.join(program.collect(program.state.params, key))
    update = Contestant(program.update, program.state)
    trials = {
        f"{100 * share:g} % kept": spread(
            episodes, round(share * rollout.num_groups), rollout.group_size
        )
        for share in SHARES
    }
    seconds, _ = harness.take_turns(
        {name: functools.partial(update, of, key) for name, of in trials.items()},
        _REPEATS.value,
    )
    is_kept = print_table(seconds, "100 % kept", MOST)
    num_programs = program.update.func._cache_size()
    print(f"compiled programs: {num_programs}, at most 1")
    return 0 if is_kept and num_programs == 1 else 1


if __name__ == "__main__":
    command.run(main)
