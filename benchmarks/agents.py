"""Agents: how much of their tools' time is hidden by decoding.

    python -m benchmarks.agents --json=FILE

Programs with two to six calls an episode, whose tools sleep, are played by the pocket
model: as in training, where a call joins the batch when it comes, and in step, where a
call waits until every row that still plays has made its own, as in trainers that decode
a turn of all rows together. No rollout is shorter than the tools of its slowest episode
take: what it takes beyond that is decoding that could not be hidden.
"""

import argparse
import asyncio
import functools
import json
import pathlib
import statistics

import jax

from benchmarks import harness
from configs import agent
from ragen_jax.devices.sharding import make_mesh
from ragen_jax.program.build import build_program
from ragen_jax.rollout.host import agents
from ragen_jax.rollout.keys import rollout_keys
from ragen_jax.runs import markdown
from ragen_jax.tasks.build import build_collect

NUM_ROWS = 32
TOOL_SECONDS = (0.0, 0.01, 0.1, 1.0)


class Gate:
    """Opens once all rows that still play wait at it."""

    def __init__(self, num_rows: int):
        self._playing, self._waiting = num_rows, 0
        self._open = asyncio.Event()

    async def wait(self) -> None:
        """Wait for the others."""
        self._waiting += 1
        opened = self._open
        self._look()
        await opened.wait()

    def leave(self) -> None:
        """Play no more."""
        self._playing -= 1
        self._look()

    def _look(self) -> None:
        if self._waiting and self._waiting == self._playing:
            self._open.set()
            self._open, self._waiting = asyncio.Event(), 0


class RowInStep(agents.AgentRow):
    """A row that waits for the others before every reply."""

    gate: Gate

    async def play(self, *arguments) -> None:
        await super().play(*arguments)
        self.gate.leave()

    async def _reply(self, *arguments) -> str:
        await self.gate.wait()
        return await super()._reply(*arguments)


class CollectorInStep(agents.AgentCollector):
    """Rollouts whose rows are in step."""

    async def _play(self, *arguments):
        RowInStep.gate = Gate(self._num_rows)
        kept, agents.AgentRow = agents.AgentRow, RowInStep
        try:
            return await super()._play(*arguments)
        finally:
            agents.AgentRow = kept


def collectors(seconds: float):
    """A rollout as in training, one in step, and what both are given."""
    config = agent.get_config()
    changes = {
        "rollout.max_turns": 6,
        "rollout.max_actions_per_episode": 6,
        "rollout.max_reply_tokens": 32,
        "rollout.num_groups": NUM_ROWS // 8,
        "rollout.group_size": 8,
        "host.episode_tokens": 512,
        "host.max_segments": 1,
        "host.num_workers": NUM_ROWS,
        "evaluation.every": None,
    }
    with config.ignore_type():
        config.update_from_flattened_dict(changes)
        config.env.host = "agent:benchmarks.slow_agent:episode"
    config.env.kwargs = {"options": {"seconds": seconds}, "metrics": ["tool_seconds"]}
    program = build_program(config)
    collect = build_collect(
        config,
        program.task,
        program.policy,
        make_mesh(**config.mesh),
        num_groups=NUM_ROWS,
        group_size=1,
    )
    in_step = object.__new__(CollectorInStep)
    in_step.__dict__.update(collect.__dict__)
    params, dialogue = program.play_params(program.state), program.task.dialogue
    given = functools.partial(functools.partial, params=params, dialogue=dialogue)
    return {"joining": given(collect), "in step": given(in_step)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    print(f"{NUM_ROWS} rows, a process each; medians")
    columns = (
        "in step",
        "joining",
        "ratio",
        "slowest episode's tools",
        "joining takes",
    )
    print(markdown.table(("mean of a tool", *columns), []))
    rows = []
    keys = (rollout_keys(jax.random.key(0), NUM_ROWS, 1),)
    for seconds in TOOL_SECONDS:
        plays, rollouts = collectors(seconds), {}

        def play(name, keys, plays=plays, rollouts=rollouts):
            rollouts[name] = plays[name](keys=keys)
            return rollouts[name]

        calls = {name: functools.partial(play, name) for name in plays}
        times, _ = harness.take_turns(calls, options.repeats, prepare=lambda: keys)
        taken = {name: statistics.median(times[name]) for name in plays}
        tokens = {name: int(x.loss_mask.sum()) for name, x in rollouts.items()}
        # Both decode the same tokens.
        assert len(set(tokens.values())) == 1
        metrics = rollouts["joining"].game_metrics
        slowest = float(metrics["tool_seconds"].max())
        rates = [tokens[name] / taken[name] for name in ("in step", "joining")]
        cells = (
            f"{1000 * seconds:g} ms",
            *(f"{x:,.0f} tokens/s" for x in rates),
            f"{rates[1] / rates[0]:.2f}",
            f"{slowest:.2f} s",
            f"{taken['joining']:.2f} s",
        )
        print(markdown.row(cells), flush=True)
        row = {"seconds": seconds, **taken, "tokens": tokens["joining"]}
        rows.append(row | {"slowest": slowest})
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
