"""Host games: how much of their time is hidden by decoding.

    python -m benchmarks.worlds --json=FILE

A game that sleeps in every step is played by the pocket model, once with all rows at
once and once in two halves that take turns. The time that sleeping adds is the host's:
all of it in the first case; in the second, the part that decoding does not hide.
"""

import argparse
import functools
import itertools
import json
import pathlib
import statistics

import jax

from benchmarks import harness
from configs import bandit
from ragen_jax.devices.sharding import make_mesh
from ragen_jax.program.build import build_program
from ragen_jax.rollout.keys import rollout_keys
from ragen_jax.runs import markdown
from ragen_jax.tasks.build import build_collect

NUM_ROWS, NUM_TURNS = 32, 4


def median_seconds(seconds: float, num_groups: int, repeats: int) -> float:
    """Seconds of a rollout; an even number of groups is played in halves."""
    config = bandit.get_config()
    changes = {
        "rollout.max_turns": NUM_TURNS,
        "rollout.max_actions_per_turn": 1,
        "rollout.max_actions_per_episode": NUM_TURNS,
        "rollout.num_groups": num_groups,
        "rollout.group_size": NUM_ROWS // num_groups,
        "host.max_observation_tokens": 8,
        "evaluation.every": None,
    }
    with config.ignore_type():
        config.update_from_flattened_dict(changes)
        config.env.host = "benchmarks.slow_game:Sleeper"
        # A process for each row.
        config.host.num_workers = NUM_ROWS
    config.env.kwargs.seconds = seconds
    program = build_program(config)
    collect = build_collect(
        config,
        program.task,
        program.policy,
        make_mesh(**config.mesh),
        num_groups=num_groups,
        group_size=NUM_ROWS // num_groups,
    )
    params = program.play_params(program.state)
    numbers = itertools.count()

    def next_keys():
        key = jax.random.key(next(numbers))
        return (rollout_keys(key, num_groups, NUM_ROWS // num_groups),)

    play = functools.partial(collect, params, program.task.dialogue)
    # The first compiles and starts the workers.
    seconds, _ = harness.take_turns({"": play}, repeats, prepare=next_keys)
    return statistics.median(seconds[""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    print(f"{NUM_ROWS} rows, {NUM_TURNS} turns, a process each; seconds of a rollout")
    columns = ("all rows at once", "in halves", "host's time hidden")
    print(markdown.table(("a step sleeps", *columns), []))
    rows, still = [], None  # seconds of both without sleep
    for seconds in (0.0, 0.03, 0.1):
        whole = median_seconds(seconds, 1, options.repeats)
        halves = median_seconds(seconds, 2, options.repeats)
        still = (whole, halves) if still is None else still
        added = [now - then for now, then in zip((whole, halves), still, strict=True)]
        hidden = 1 - added[1] / added[0] if seconds else None
        share = "-" if hidden is None else f"{hidden:.0%}"
        cells = (f"{seconds:g} s", f"{whole:.3f}", f"{halves:.3f}", share)
        print(markdown.row(cells), flush=True)
        row = {"seconds": seconds, "whole": whole, "halves": halves, "hidden": hidden}
        rows.append(row)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
