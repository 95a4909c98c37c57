"""Estimated and counted against measured memory: `launch.plan` and a process's own.

    python -m benchmarks.plan

Per case two fresh processes: one plans, as `launch.plan` does with and without
`--compile`; one compiles the same programs, notes its resident memory, makes random
weights and really runs a rollout, an evaluation and an update in turn, noting the
highest resident memory of each (Linux's VmHWM, reset before each). The table shows the
growth. CPU only. Exits with 1 when XLA's count is more than 15 % off a growth of 1 GB
or more, or an estimate more than 25 % off XLA's count of as much.
"""

import ctypes
import gc
import json
import subprocess
import sys
from typing import Any

from absl import flags

from launch import command
from ragen_jax.runs import markdown

_CASE = flags.DEFINE_string("case", None, "Only this one; see CASES.")
_CHILD = flags.DEFINE_enum("child", None, ["plan", "run"], "Used by the command.")

GB = 1e9
TOLERANCE, ESTIMATE_TOLERANCE, LEAST_GB = 0.15, 0.25, 1.0

WIDE = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 8192,
}
NARROW = {
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 1024,
}
SMALL_BATCH = {
    "rollout.num_groups": 4,
    "rollout.group_size": 4,
    "filter.keep_fraction": 1.0,
    "learner.minibatch_rows": 16,
    "learner.microbatch_rows": 8,
    "evaluation.num_prompts": 64,
    # One program for all rows, as on an accelerator.
    "rollout.part_rows": None,
}
# Name -> preset, shape of the random model, changes to the task `configs/sokoban.py`.
CASES = {
    "all weights": ("pocket,grpo", WIDE, SMALL_BATCH),
    "critic, layers recomputed": (
        "pocket,ppo",
        WIDE,
        SMALL_BATCH | {"model.remat": "layers"},
    ),
    "long texts, all kept": (
        "pocket,grpo",
        NARROW,
        SMALL_BATCH | {"rollout.max_reply_tokens": 120},
    ),
}


def prepare(case: str):
    """Configuration, shape and tokenizer of a case."""
    import dataclasses

    from configs import sokoban
    from ragen_jax.config import validate
    from ragen_jax.memory.plan import read_model

    preset, shape, changes = CASES[case]
    config = sokoban.get_config(preset)
    config.update_from_flattened_dict(changes)
    validate(config)
    pocket, tokenizer, _ = read_model("pocket")
    return config, dataclasses.replace(pocket, **shape), tokenizer


def planned(case: str) -> dict[str, tuple[int, int]]:
    """Program -> bytes held while it runs: estimated, and by XLA's count."""
    from ragen_jax.memory.plan import make_plan
    from ragen_jax.program.lowering import PROGRAMS

    estimate, count = (
        make_plan(*prepare(case), compiled=compiled, on_cpu=True)
        for compiled in (False, True)
    )
    return {name: (estimate.peak_of(name), count.peak_of(name)) for name in PROGRAMS}


def measured(case: str) -> dict[str, int]:
    """Program -> growth of the resident memory while it really runs, in bytes."""
    import jax

    from ragen_jax.program.build import build_parts

    parts = build_parts(*prepare(case))
    learner, (task,) = parts.learner, parts.tasks
    key = jax.random.key(0)
    collect = jax.jit(task.collect).lower(learner.played, key).compile()
    prompts = task.dialogue, task.validation.keys(0)
    task.validation.collect.lower(learner.played, *prompts).compile()
    batch = jax.eval_shape(task.collect, learner.played, key)
    described = learner.frozen, learner.numbers, learner.state
    lowered = learner.update.lower(*described, batch, key)
    update = lowered.compile()
    forget_peak()
    before = resident("VmRSS")
    params = jax.jit(parts.policy.init)(key)
    frozen, state = learner.freeze(params), learner.init(params, 0)
    del params
    grown = {}

    def note(name, function, *arguments):
        forget_peak()
        out = jax.block_until_ready(function(*arguments))
        grown[name] = resident("VmHWM") - before
        return out

    play = learner.play_params(frozen, state)
    batch = note("rollout", collect, play, key)
    note("evaluation", task.collect_validation, play)
    note("update", update, frozen, learner.numbers, state, batch, key)
    return grown


def forget_peak() -> None:
    """Give back what is free, and start a new peak."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def resident(field: str) -> int:
    """VmRSS or VmHWM of this process, bytes."""
    with open("/proc/self/status") as file:
        (line,) = [line for line in file if line.startswith(f"{field}:")]
    return int(line.split()[1]) * 1024


def child(what: str, case: str) -> dict[str, Any]:
    """`planned` or `measured` in a separate process."""
    words = [sys.executable, "-m", "benchmarks.plan", f"--case={case}"]
    done = subprocess.run(
        [*words, f"--child={what}"], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main(_: list[str]) -> int:
    if _CHILD.value:
        function = {"plan": planned, "run": measured}[_CHILD.value]
        print(json.dumps(function(_CASE.value)))
        return 0
    is_close = True
    columns = ("estimate GB", "count GB", "grown GB", "count / grown")
    print(markdown.table(("case", "program", *columns), []))
    for case in [_CASE.value] if _CASE.value else CASES:
        plan, run = child("plan", case), child("run", case)
        for name, (estimate, count) in plan.items():
            ratio = count / run[name]
            if run[name] >= LEAST_GB * GB:
                is_close &= abs(ratio - 1) <= TOLERANCE
                is_close &= abs(estimate / count - 1) <= ESTIMATE_TOLERANCE
            sizes = (f"{size / GB:.2f}" for size in (estimate, count, run[name]))
            print(markdown.row((case, name, *sizes, f"{ratio:.2f}")), flush=True)
    return 0 if is_close else 1


if __name__ == "__main__":
    command.run(main)
