"""Seconds per training iteration, split into rollout and update.

    python -m benchmarks.iteration                  # pocket model, 16 x 8, 3 turns
    python -m benchmarks.iteration --presets=pocket,grpo
    python -m benchmarks.iteration --json=FILE

Times are of whole calls, results fetched, after a first call that compiles. Noisy
machines: read the minimum and the median, not one number.
"""

import json
import pathlib
import platform
import time

from absl import flags

from launch import command

_REPEATS = flags.DEFINE_integer("repeats", 7, "Measured iterations.")
_JSON = flags.DEFINE_string("json", None, "Also write the figures to this file.")
_TASK = flags.DEFINE_string("task", "configs/sokoban.py", "Task file.")
_PRESETS = flags.DEFINE_string("presets", "pocket", "Its presets.")


def measure(config, repeats: int) -> dict:
    """Compile seconds, and per-iteration seconds of each stage."""
    import jax

    from ragen_jax import rngs
    from ragen_jax.program import build_program, num_params

    began = time.perf_counter()
    program = build_program(config)
    built = time.perf_counter() - began
    root, state = rngs.root_key(config.seed), program.state
    parameters = num_params(state.params)
    rollout, update, tokens = [], [], []
    for iteration in range(repeats + 1):
        key = rngs.step_key(root, iteration)
        began = time.perf_counter()
        rollouts = program.collect(program.play_params(state), key)
        middle = time.perf_counter()
        batch = program.join(rollouts)
        shuffle_key = rngs.stream(key, "shuffle")
        state, stats = program.update(state, batch, shuffle_key)
        jax.block_until_ready((state, stats))
        rollout.append(middle - began)
        update.append(time.perf_counter() - middle)
        tokens.append(int(batch.loss_mask.sum()))
    return {
        "device": jax.devices()[0].device_kind,
        "machine": platform.machine(),
        "jax": jax.__version__,
        "parameters": parameters,
        "rows": config.rollout.num_groups * config.rollout.group_size,
        "turns": config.rollout.max_turns,
        "sampled_tokens": tokens[1:],
        "build_s": built,
        "first_rollout_s": rollout[0],
        "first_update_s": update[0],
        "rollout_s": rollout[1:],
        "update_s": update[1:],
    }


def main(argv: list[str]) -> int:
    del argv
    import importlib.util
    import statistics

    spec = importlib.util.spec_from_file_location("task", _TASK.value)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config(_PRESETS.value)
    config.rollout.num_groups = 16
    config.rollout.group_size = 8
    config.filter.keep_fraction = 0.25
    figures = measure(config, _REPEATS.value)
    total = [
        r + u for r, u in zip(figures["rollout_s"], figures["update_s"], strict=True)
    ]
    print(
        f"{figures['parameters']:,} parameters, {figures['rows']} rows x "
        f"{figures['turns']} turns on {figures['device']} (jax {figures['jax']})"
    )
    print(f"{'stage':<10}{'min s':>9}{'median s':>10}{'max s':>9}{'first s':>9}")
    firsts = figures["first_rollout_s"], figures["first_update_s"]
    rows = (
        ("rollout", figures["rollout_s"], firsts[0]),
        ("update", figures["update_s"], firsts[1]),
        ("iteration", total, sum(firsts)),
    )
    for name, seconds, first in rows:
        print(
            f"{name:<10}{min(seconds):>9.2f}{statistics.median(seconds):>10.2f}"
            f"{max(seconds):>9.2f}{first:>9.2f}"
        )
    sampled = statistics.mean(figures["sampled_tokens"])
    print(f"sampled tokens per iteration: {sampled:.0f}")
    if _JSON.value:
        pathlib.Path(_JSON.value).write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    command.run(main)
