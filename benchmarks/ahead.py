"""Rollouts one iteration ahead: seconds of an iteration, and what staleness costs.

    python -m benchmarks.ahead speed --json=FILE
    python -m benchmarks.ahead learning --json=FILE

The pocket model answers questions with a search engine that takes 50 ms for every reply
(`configs/search.py`, made smaller). `speed` times iterations one after the other,
ahead on the same device (whose waiting is filled) and ahead on a separate device.
`learning` trains with and without, for several seeds, and tests on held-out questions.
Both write into FILE, beside what the other has written there; a CPU counts as two
devices.
"""

import argparse
import json
import math
import pathlib
import statistics
import time
from collections.abc import Iterator

import jax

# Before the imports, some of which compute: then JAX has counted its devices.
jax.config.update("jax_num_cpu_devices", 2)

# ruff: noqa: E402
from ml_collections import ConfigDict

from benchmarks.harness import versions
from configs import search
from ragen_jax.config import validate
from ragen_jax.evaluation.evaluate import evaluate
from ragen_jax.program.build import Program, build_program
from ragen_jax.program.prefetch import RolloutPrefetcher
from ragen_jax.runs import markdown
from ragen_jax.runs.metrics import HIDDEN
from ragen_jax.runs.writer import write_text_atomically
from ragen_jax.train import Iteration, make_iterate

# For all modes: the loss is the same, whether or not rollouts are stale.
SETTINGS = {
    "env.host": "benchmarks.slow_search:SlowSearch",
    "host.num_workers": 2,
    # Small enough for two cores: 32 episodes and two steps an iteration.
    "algo.advantage": "grpo",
    "rollout.num_groups": 4,
    "filter.keep_fraction": 1.0,
    "learner.minibatch_rows": 16,
    "loss.old_log_probs": "learner",
    "loss.importance_cap": 2.0,
    "diagnostics.every": None,
}
# How rollouts and updates follow each other -> what it changes.
MODES = {
    "one after the other": {},
    "ahead, one device": {"rollout.ahead": 1},
    "ahead, two devices": {"rollout.ahead": 1, "rollout.devices": 1},
}
# Iterations that compile, or wait for a compilation.
WARM_UP = 4


def make_config(mode: str, seed: int, num_iterations: int) -> ConfigDict:
    """The configuration of a run, checked."""
    config = search.get_config()
    changes = {"seed": seed, "train.num_iterations": num_iterations}
    with config.ignore_type():
        config.update_from_flattened_dict(SETTINGS | MODES[mode] | changes)
    validate(config)
    return config


def run(config: ConfigDict, program: Program) -> Iterator[tuple[Iteration, float]]:
    """All iterations of a run and their seconds."""
    state = program.state
    with RolloutPrefetcher(config, program) as prefetcher:
        iterate = make_iterate(config, program, prefetcher=prefetcher)
        for done in range(1, config.train.num_iterations + 1):
            began = time.perf_counter()
            iteration = iterate(state, done)
            state = iteration.state
            yield iteration, time.perf_counter() - began


def speed(num_iterations: int) -> dict[str, dict[str, float]]:
    """Median seconds of iterations and of their parts, by mode."""
    figures = {}
    columns = ("rollout", "of it waited for", "hidden", "update")
    print(markdown.table(("rollouts", "s/iteration", *columns), []))
    for mode in MODES:
        # The last iteration has no rollout beside it.
        config = make_config(mode, 0, WARM_UP + num_iterations + 1)
        timed = list(run(config, build_program(config)))[WARM_UP:-1]
        parts = {
            name: statistics.median(
                i.timing.get(f"timing_s/{name}", 0.0) for i, _ in timed
            )
            for name in ("rollout", HIDDEN.removeprefix("timing_s/"), "update")
        }
        waited, hidden = parts["rollout"], parts["rollout_hidden"]
        seconds = statistics.median(x for _, x in timed)
        figures[mode] = {
            "seconds": seconds,
            "rollout": waited + hidden,
            "waited": waited,
            "hidden": hidden / (waited + hidden),
            "update": parts["update"],
            "iterations": len(timed),
        }
        times = (f"{x:.2f}" for x in (seconds, waited + hidden, waited))
        share = f"{figures[mode]['hidden']:.0%}"
        print(markdown.row((mode, *times, share, f"{parts['update']:.2f}")), flush=True)
    return figures


# Metrics that describe the correction.
STALE = (
    "actor/staleness",
    "actor/sampler_weight_mean",
    "actor/sampler_weight_max",
    "actor/sampler_weight_truncated",
    "actor/sampler_effective_sample_size",
    "actor/sampler_log_prob_difference",
)


def learning(seeds: list[int], num_iterations: int) -> Iterator[dict]:
    """Held-out success before and after, run by run, with and without."""
    before = None  # the same for all: the model's
    columns = ("before", "after (95 % interval)", "sample size", "s")
    print(markdown.table(("seed", "rollouts", *columns), []))
    for seed in seeds:
        for mode in list(MODES)[:2]:
            config = make_config(mode, seed, num_iterations)
            program = build_program(config)
            before = before or _success(program, program.state)
            began = time.perf_counter()
            iterations = [iteration for iteration, _ in run(config, program)]
            seconds = time.perf_counter() - began
            after = _success(program, iterations[-1].state)
            means = {
                name: statistics.mean(
                    float(i.metrics[name]) for i in iterations[1:] if name in i.metrics
                )
                for name in STALE
                if name in iterations[-1].metrics
            }
            size = means["actor/sampler_effective_sample_size"]
            low, high = f"{after['low']:.1%}", f"{after['high']:.1%}"
            shares = (
                f"{before['success']:.1%}",
                f"{after['success']:.1%} ({low} to {high})",
            )
            cells = (seed, mode, *shares, f"{size:.3f}", f"{seconds:.0f}")
            print(markdown.row(cells), flush=True)
            yield {
                "seed": seed,
                "mode": mode,
                "before": before,
                "after": after,
                "means": means,
                "seconds": seconds,
                "iterations": num_iterations,
            }


def _success(program: Program, state) -> dict[str, float]:
    metrics, _ = evaluate(program, program.play_params(state))
    prefix = f"val-env/{program.task.name}/success"
    ends = {"success": "", "low": "_low", "high": "_high"}
    figures = {name: metrics[f"{prefix}{end}"] for name, end in ends.items()}
    assert all(map(math.isfinite, figures.values()))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("speed", "learning"))
    parser.add_argument("--iterations", type=int)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if options.part == "speed":
        save(options.json, "speed", speed(options.iterations or 12))
        return
    runs = []
    for one in learning(options.seeds, options.iterations or 40):
        runs.append(one)
        save(options.json, "learning", runs)


def save(path: pathlib.Path | None, part: str, found: object) -> None:
    """Write figures into a file, in place of those of the same part."""
    if path is None:
        return
    known = json.loads(path.read_text()) if path.exists() else {}
    known |= {part: found, "versions": versions()}
    write_text_atomically(path, json.dumps(known, indent=2) + "\n")


if __name__ == "__main__":
    main()
