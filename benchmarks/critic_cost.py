"""What a critic costs: PPO's update against GRPO's on the same episodes.

    python -m benchmarks.critic_cost

A separate network costs at most 2.5 times GRPO's update (counting passes: 3 for the
policy, 3 for the critic and 1 to read the values, 7 / 3 = 2.33), a head on the policy's
trunk at most 1.3 times. The status is 1 when either limit is exceeded.
"""

import functools

from absl import flags

from benchmarks import harness
from launch import command

_REPEATS = flags.DEFINE_integer("repeats", 5, "Measured updates of each kind.")

KEEP = {"filter.keep_fraction": 0.5}
KINDS = {
    "GRPO": KEEP,
    "PPO, separate critic": KEEP | {"algo.advantage": "gae"},
    "PPO, shared trunk": KEEP | {"algo.advantage": "gae", "critic.trunk": "shared"},
}
MOST = {"PPO, separate critic": 2.5, "PPO, shared trunk": 1.3}


def main(_: list[str]) -> int:
    import jax

    from benchmarks.update_times import Contestant, build, print_table

    contestants, episodes = {}, None
    for name, changes in KINDS.items():
        config, program = build(changes)
        key = jax.random.key(config.seed)
        if episodes is None:
            episodes = program.join(program.collect(program.state.params, key))
        contestant = Contestant(program.update, program.state)
        contestants[name] = functools.partial(contestant, episodes, key)
    seconds, stats = harness.take_turns(contestants, _REPEATS.value)
    is_kept = print_table(seconds, "GRPO", MOST)
    tokens = {int(of["actor/num_tokens"]) for of in stats.values()}
    print(f"trained tokens per update: {', '.join(map(str, tokens))}")
    return 0 if is_kept and len(tokens) == 1 else 1


if __name__ == "__main__":
    command.run(main)
