"""What two runs of different seeds gain by computing together on this device.

    python -m benchmarks.sweep [--json=FILE]

The rollout and the update of the pocket preset, for two seeds: one after the other (as
`launch.train` twice), each on its thread (as `launch.sweep` on a CPU), and
vmapped into one program. The status is 1 when threads change a bit.
"""

import concurrent.futures

from absl import flags

from benchmarks import harness, runs
from launch import command

_REPEATS = flags.DEFINE_integer("repeats", 3, "Measured calls of each kind.")
_TINY = flags.DEFINE_bool("tiny", False, "A few rows and a narrow network: all code.")
harness.define_json()

WAYS = ("in turn", "two threads", "vmapped")
# Groups of the tiny form are played one at a time, too.
TINY = runs.TINY_BATCH | {"rollout.part_rows": 2}


def main(_: list[str]) -> int:
    command.enable_compilation_cache()
    config = runs.task_config("pocket", TINY if _TINY.value else {})
    setup = runs.set_up(config, tiny=_TINY.value)
    figures = {"notes": setup.notes, "problems": [], "seconds": {}}
    rollouts = measure_rollouts(config, setup, figures)
    measure_updates(setup, rollouts, figures)
    return harness.report(figures, print_table)


def measure_rollouts(config, setup, figures):
    """Time the training rollouts; returns them, one per seed."""
    import jax

    from ragen_jax import rngs
    from ragen_jax.rollout.keys import rollout_keys
    from ragen_jax.rollout.parts import run_parts
    from ragen_jax.tasks.build import build_collect

    parts, sizes = setup.parts, config.rollout
    (task,) = parts.tasks
    step_keys = [rngs.step_key(rngs.root_key(seed), 0) for seed in (0, 1)]
    params = parts.learner.init(setup.params, 0).params

    def play(key):
        return jax.block_until_ready(task.collect(params, key))

    # The same parts as in a rollout, those of both seeds in one program.
    mesh = parts.batch_sharding.mesh
    part = {"num_groups": 1, "group_size": sizes.group_size}
    collect = build_collect(config, task, parts.policy, mesh, **part)
    both = jax.jit(jax.vmap(collect, in_axes=(0, None, 0)))
    stacked = stack([params, params])
    groups = range(sizes.num_groups)
    part_keys = [
        stack([rollout_keys(jax.random.fold_in(key, g), **part) for key in step_keys])
        for g in groups
    ]

    def play_vmapped():
        return run_parts(
            lambda keys: both(stacked, task.dialogue, keys),
            part_keys,
            concurrently=True,
        )

    ways = {
        "in turn": lambda: [play(key) for key in step_keys],
        "two threads": lambda: on_threads(play, step_keys),
        "vmapped": play_vmapped,
    }
    results = measure("rollout", ways, figures)
    compare("rollout", results, figures)
    return results["in turn"]


def measure_updates(setup, rollouts, figures) -> None:
    """Time the updates from these rollouts."""
    import jax
    import numpy as np

    learner, join = setup.parts.learner, setup.parts.join
    fixed = learner.freeze(setup.params), learner.numbers
    batches = [join([rollout]) for rollout in rollouts]
    keys = [jax.random.key(seed) for seed in (0, 1)]
    both = jax.jit(jax.vmap(learner.update, in_axes=(None, None, 0, 0, 0)))
    pair = stack(batches), stack(keys)

    def states():
        return [learner.init(setup.params, seed) for seed in (0, 1)]

    def update(arguments):
        return jax.block_until_ready(learner.update(*fixed, *arguments)[0].params)

    def vmapped(states):
        state, *_ = both(*fixed, stack(states), *pair)
        params = jax.device_get(state.params)
        return [jax.tree.map(lambda x, i=i: x[i], params) for i in (0, 1)]

    ways = {
        "in turn": lambda all_of: [update(one) for one in all_of],
        "two threads": lambda all_of: on_threads(update, all_of),
        "vmapped": lambda all_of: vmapped([state for state, *_ in all_of]),
    }
    # The update donates its state, so every call needs new ones.
    results = measure(
        "update",
        ways,
        figures,
        lambda: (list(zip(states(), batches, keys, strict=True)),),
    )
    compare("update", results, figures)
    alone, together = (jax.device_get(results[w]) for w in ("in turn", "vmapped"))
    differences = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), alone, together)
    largest = max(jax.tree.leaves(differences))
    figures["notes"].append(
        f"vmapped updates differ from those alone by up to {largest:.1g}"
    )


def measure(stage: str, ways, figures, prepare=tuple):
    """Note the seconds of each way; returns the last results."""
    seconds, results = harness.take_turns(ways, _REPEATS.value, prepare=prepare)
    figures["seconds"] |= {f"{stage}, {way}": of for way, of in seconds.items()}
    return results


def compare(stage: str, results, figures) -> None:
    """Threads must not change a bit."""
    import jax
    import numpy as np

    pairs = (jax.tree.leaves(jax.device_get(results[way])) for way in WAYS[:2])
    if not all(np.array_equal(a, b) for a, b in zip(*pairs, strict=True)):
        figures["problems"].append(f"{stage}: two threads give other bits")


def on_threads(function, arguments):
    """Results of the function for each argument, all at the same time."""
    with concurrent.futures.ThreadPoolExecutor(len(arguments)) as threads:
        return list(threads.map(function, arguments))


def stack(trees):
    """Trees as one, along a new first axis."""
    import jax
    import jax.numpy as jnp

    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def print_table(figures) -> None:
    """Seconds for two seeds, and how much faster than in turn."""
    rows = []
    for name, seconds in figures["seconds"].items():
        first = figures["seconds"][f"{name.split(',')[0]}, in turn"]
        gain = f"{min(first) / min(seconds):.2f}x"
        rows.append({"two seeds": name} | harness.times(seconds) | {"gain": gain})
    harness.print_rows(rows)


if __name__ == "__main__":
    command.run(main)
