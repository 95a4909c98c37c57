"""Rollouts of agents: programs that own their loop and call the policy.

In: a `HostGameEnv` whose game makes calls, a policy and random keys. Out: a
`Trajectory`, like that of the compiled rollout; each call of a program is a turn of its
row, each of its dialogues a segment (`calls`). Programs run in worker processes, a
process a row; their calls join the batch when they come, so that no row waits for
another's tools (`row_decoder`).

A row whose program fails ends there, and none of its tokens is trained on.
"""

import asyncio
import collections
import contextlib
import copy
import functools
import json
import sys
from collections.abc import Sequence
from typing import Protocol

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Key

from envs.base import TRAINING, EnvParams
from ragen_jax.devices.sharding import by_rows
from ragen_jax.host_games.agent.calls import CallRefused, ChatCall
from ragen_jax.host_games.agent.game import write_refusal
from ragen_jax.host_games.agent.tools import TOOL_FORMATS, ToolFormat
from ragen_jax.host_games.workers.pool import Pool, WorkerResponse
from ragen_jax.models.policy import Policy
from ragen_jax.rollout.collect import GivenSettings, given_settings
from ragen_jax.rollout.host.calls import (
    REFUSED,
    REREAD,
    SEGMENTS,
    CallEpisode,
    CallLimits,
    Played,
    to_trajectory,
)
from ragen_jax.rollout.host.env import HostGameEnv
from ragen_jax.rollout.host.games import encode_plain
from ragen_jax.rollout.host.loop import READ_TOKENS
from ragen_jax.rollout.host.row_decoder import (
    RowDecoder,
    RowPrograms,
    SampledTokens,
    Sampling,
)
from ragen_jax.rollout.host.rows import check_failures, draw_problems
from ragen_jax.rollout.keys import RolloutKeys, spread_levels
from ragen_jax.rollout.layout import RowLayout, check_rows
from ragen_jax.rollout.numbers import RolloutNumbers
from ragen_jax.rollout.parts import rows_per_part
from ragen_jax.rollout.turns import EpisodeLimits
from ragen_jax.terminal import say
from ragen_jax.text.calls import CallWriter, state_hash
from ragen_jax.text.dialogue import Dialogue
from ragen_jax.text.tokenizer import Tokenizer
from ragen_jax.types import Params, Trajectory

# On a CPU a batch of that many rows costs least for each of them.
CPU_PART_ROWS = 8


class CallPlayer(Protocol):
    """Who replies to the calls of some rows."""

    async def reply(
        self,
        row: int,
        prompt: Sequence[int],
        limit: int,
        sampling: Sampling,
        *,
        is_alone: bool,
    ) -> tuple[SampledTokens, int]:
        """See `RowDecoder.reply`."""


class AgentRow:
    """The episode of a row.

    Args:
      key: of the row's samples.
      temperature: of sampling.
      is_parallel: calls may come in any order.
    """

    def __init__(
        self,
        episode: CallEpisode,
        key: Key[Array, ""],
        temperature: float,
        is_parallel: bool,
    ):
        self.episode, self._key, self._is_parallel = episode, key, is_parallel
        self._temperature = temperature
        self._counts: dict[int, int] = {}
        self.last = WorkerResponse()

    async def play(
        self,
        pool: Pool,
        process: int,
        problem: tuple[int, int | None],
        player: CallPlayer,
        row: int,
    ) -> None:
        """Play to the end.

        Args:
          process: of the pool, which plays the episode.
          row: of the player.
        """
        self.last = await asyncio.wrap_future(pool.begin_row(process, *problem))
        while not self.last.is_over:
            if self.last.call is None:
                reason = "a game of calls showed a message"
                self.last = WorkerResponse(failure=reason)
                return
            call = ChatCall.from_json(self.last.call)
            reply = await self._reply(call, player, row)
            self.last = await asyncio.wrap_future(pool.step_row(process, reply))
            if self.episode.calls and self.last.failure is None:
                # A reward after a refusal is that of the reply before.
                self.episode.calls[-1].reward += self.last.reward
                self.episode.calls[-1].valid = self.last.valid
        if not self.episode.calls and self.last.failure is None:
            # Nothing of it can be learned, and nothing it lacks would show.
            reason = f"none of its calls was answered: {self.episode.refusals[0]}"
            self.last = WorkerResponse(failure=reason)
        if self._is_parallel and self.episode.calls:
            self.episode.sort()

    def played(self, penalty: float = 0.0) -> Played:
        """The episode after its end; `penalty` is that of a reply of no use."""
        return Played(
            self.episode.calls,
            penalty,
            terminated=self.last.terminated,
            success=self.last.success,
            is_lost=self.last.failure is not None,
        )

    async def _reply(self, call: ChatCall, player: CallPlayer, row: int) -> str:
        try:
            prompt = self.episode.prompt(call)
        except CallRefused as refusal:
            return write_refusal(refusal)
        asked = int(state_hash(prompt.ids)[0])
        nth = self._counts[asked] = self._counts.get(asked, -1) + 1
        key = _call_key(self._key, np.uint32(asked), np.uint32(nth))
        sampled, num_read = await player.reply(
            row,
            prompt.ids,
            prompt.limit,
            Sampling(key, self._temperature),
            # What a row holds depends on which call came first.
            is_alone=self._is_parallel,
        )
        answer = self.episode.answer(call, prompt, sampled, num_read)
        return json.dumps(answer.to_json())


class Places:
    """The processes of a pool, which episodes take in turn."""

    def __init__(self, pool: Pool):
        self._pool, self._free = pool, asyncio.Queue()
        for process in range(pool.num_rows):
            self._free.put_nowait(process)

    async def play(
        self,
        row: AgentRow,
        problem: tuple[int, int | None],
        player: CallPlayer,
        number: int | None = None,
    ) -> None:
        """Play an episode once a process is free.

        Args:
          number: the player's row; None: the number of the process.
        """
        process = await self._free.get()
        which = process if number is None else number
        await row.play(self._pool, process, problem, player, which)
        self._free.put_nowait(process)


class AgentCollector:
    """Rollouts of agents by a policy; called as what `make_collect` returns.

    Workers start with the first rollout and end with the program.

    Args:
      env, env_params: the game.
      policy, mesh, num_groups, group_size, rules: as of `make_collect`.
      tokenizer: of the policy.
      limits: of an episode.
      temperature, top_k, top_p: see `sampling.sample`.
      decoding: see `make_decoding`.
    """

    def __init__(
        self,
        env: HostGameEnv,
        env_params: EnvParams,
        policy: Policy,
        *,
        tokenizer: Tokenizer,
        limits: CallLimits,
        mesh: Mesh,
        num_groups: int,
        group_size: int,
        rules: EpisodeLimits,
        temperature: float,
        top_k: int | None = None,
        top_p: float | None = None,
        read_chunk_tokens: int | None = None,
        **decoding: float | None,
    ):
        if jax.process_count() > 1:
            raise ValueError(
                f"agents are played by one process, and this run has "
                f"{jax.process_count()}; start it on one machine"
            )
        self._make_programs = functools.cache(
            functools.partial(
                self._compile,
                policy,
                rules,
                mesh,
                {"read_tokens": read_chunk_tokens or READ_TOKENS, **decoding},
            )
        )
        sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        self._given = given_settings(env_params, rules, mesh, **sampling)
        self._env, self._rules, self._limits = env, rules, limits
        self._tokenizer, self._write = tokenizer, CallWriter(tokenizer)
        self._tools: ToolFormat = TOOL_FORMATS[self._write.tool_format]
        self._mesh, self._vocab_size = mesh, policy.config.vocab_size
        # Of all that play by these programs.
        self._has_warned: list[bool] = []
        self._set_sizes(num_groups, group_size)

    def _compile(
        self, policy: Policy, rules: EpisodeLimits, mesh: Mesh, how: dict, num_rows: int
    ) -> RowPrograms:
        layout, width = RowLayout(mesh, 1), self._limits.context_tokens
        sizes = {"num_rows": num_rows, "context_tokens": width}
        return RowPrograms(policy, rules, layout, **sizes, **how)

    def _set_sizes(self, num_groups: int, group_size: int) -> None:
        check_rows(self._mesh, num_groups * group_size)
        self._group_size, self._num_rows = group_size, num_groups * group_size
        part = rows_per_part(CPU_PART_ROWS, self._mesh, self._num_rows, 1)
        self._part_rows = part or self._num_rows
        # Per split.
        self._games: dict[str, Pool] = {}

    def with_numbers(self, numbers: RolloutNumbers) -> "AgentCollector":
        """Rollouts by the same programs and workers with other numbers."""
        changed = copy.copy(self)
        changed._given = self._given.replace(numbers=numbers)
        return changed

    def for_evaluation(self, num_prompts: int, temperature: float) -> "AgentCollector":
        """Rollouts by the same programs, with workers of their own; see `Collect`."""
        changed = copy.copy(self)
        changed._set_sizes(num_prompts, 1)
        changed._given = self._given.for_evaluation(temperature, self._vocab_size)
        return changed

    def __call__(
        self, params: Params, dialogue: Dialogue, keys: RolloutKeys
    ) -> Trajectory:
        if keys.split not in self._games:
            spec = self._env.spec
            num_places = min(spec.num_workers, self._num_rows)
            self._games[keys.split] = Pool(spec, keys.split, num_places)
        keys = spread_levels(keys, self._group_size)
        fixed = params, dialogue, self._given
        rows = asyncio.run(self._play(fixed, keys, self._games[keys.split]))
        failures = [row.last.failure for row in rows if row.last.failure is not None]
        check_failures(failures, len(rows), self._env.max_failed_fraction)
        self._warn_of_refusals(rows)
        return self._trajectory(rows, keys)

    def close(self) -> None:
        """End the workers, and with them a rollout in another thread."""
        for pool in self._games.values():
            pool.close()
        self._games.clear()

    async def _play(
        self,
        fixed: tuple[Params, Dialogue, GivenSettings],
        keys: RolloutKeys,
        pool: Pool,
    ) -> list[AgentRow]:
        size = self._part_rows
        # The last part may be filled up with rows that never play.
        num_parts = -(-self._num_rows // size)
        parts = np.arange(num_parts * size).reshape(num_parts, size) % self._num_rows
        programs = self._make_programs(size)
        decoders = [RowDecoder(programs, fixed, keys.sample[part]) for part in parts]
        problems = list(zip(*draw_problems(keys, self._num_tasks(keys)), strict=True))
        temperature = float(self._given.numbers.temperature)
        rows = [
            AgentRow(
                CallEpisode(self._write, self._tokenizer, self._tools, self._limits),
                key,
                temperature,
                self._env.is_parallel,
            )
            for key in _row_keys(keys.sample, count=self._num_rows)
        ]
        try:
            async with asyncio.TaskGroup() as group:
                serving = [group.create_task(decoder.run()) for decoder in decoders]
                places = Places(pool)
                await asyncio.gather(
                    *(
                        places.play(row, problems[i], decoders[i // size], i % size)
                        for i, row in enumerate(rows)
                    )
                )
                for task in serving:
                    task.cancel()
        except* Exception as errors:
            # The first to fail ended the others.
            raise errors.exceptions[0] from None
        return rows

    def _warn_of_refusals(self, rows: Sequence[AgentRow]) -> None:
        """Say once that most episodes end because calls are refused."""
        refused = [row.episode.refusals[0] for row in rows if row.episode.refusals]
        if self._has_warned or 2 * len(refused) <= len(rows):
            return
        self._has_warned.append(True)
        ((reason, count),) = collections.Counter(refused).most_common(1)
        say(
            f"warning: in {len(refused)} of {len(rows)} episodes a call was refused, "
            f"in {count} of them since {reason}",
            sys.stderr,
        )

    def _num_tasks(self, keys: RolloutKeys) -> int | None:
        return self._env.num_tasks[keys.split]

    def _trajectory(self, rows: Sequence[AgentRow], keys: RolloutKeys) -> Trajectory:
        penalty = float(self._given.numbers.format_penalty)
        num_actions = self._rules.budget.max_actions_per_turn
        played = [row.played(penalty) for row in rows]
        fields = to_trajectory(played, self._limits, num_actions)
        numbers = {
            name: [row.last.info.get(name, np.nan) for row in rows]
            for name in self._env.metrics
        }
        numbers[SEGMENTS] = [len(row.episode.segments) for row in rows]
        numbers[REREAD] = [row.episode.num_reread for row in rows]
        numbers[REFUSED] = [len(row.episode.refusals) for row in rows]
        metrics = {name: np.array(x, np.float32) for name, x in numbers.items()}
        trajectory = Trajectory(
            **fields,
            initial_state=None,
            noise_key=np.asarray(jax.random.key_data(keys.noise)),
            game_metrics=metrics,
        )
        return jax.device_put(trajectory, by_rows(self._mesh))


class Expert:
    """The demonstrated replies of some rows; a `CallPlayer`."""

    def __init__(self, env: HostGameEnv, pool: Pool, tokenizer: Tokenizer):
        self._name, self._pool, self._tokenizer = env.name, pool, tokenizer

    async def reply(
        self,
        row: int,
        prompt: Sequence[int],
        limit: int,
        sampling: Sampling,
        *,
        is_alone: bool,
    ) -> tuple[SampledTokens, int]:
        del sampling, is_alone
        solved = await asyncio.wrap_future(self._pool.solve_row(row))
        if solved.failure is not None or not solved.solution:
            raise ValueError(
                f"{self._name} cannot be demonstrated: "
                f"{solved.failure or 'env.kwargs.expert names no player'}"
            )
        text = solved.solution[0]
        tokenizer = self._tokenizer
        ids = encode_plain(tokenizer, text)
        ids = np.array([*ids, tokenizer.id_of(tokenizer.markup.end)], np.int32)
        if len(ids) > limit:
            raise ValueError(
                f"a demonstrated reply of {self._name} takes {len(ids)} tokens, and "
                f"{limit} are left; raise max_reply_tokens or host.episode_tokens: "
                f"{text!r}"
            )
        return SampledTokens(ids, np.zeros(len(ids), np.float32), True), len(prompt)


def demonstrate(
    env: HostGameEnv,
    tokenizer: Tokenizer,
    limits: CallLimits,
    num_actions: int,
    keys: RolloutKeys,
    num_rows: int,
) -> Trajectory:
    """Episodes whose replies are the expert's, one per key, on the host.

    Args:
      env: the agent.
      tokenizer: of the model that will be trained.
      limits: of an episode.
      num_actions: `A`, of the arrays.
      keys: one level key per row.
      num_rows: episodes that are played side by side.

    Raises:
      ValueError: there is no expert, a program fails, or a reply is too long.
    """
    write = CallWriter(tokenizer)
    tools = TOOL_FORMATS[write.tool_format]
    problems = list(zip(*draw_problems(keys, env.num_tasks[TRAINING]), strict=True))
    samples = _row_keys(keys.sample, count=len(problems))
    rows = [
        AgentRow(
            CallEpisode(write, tokenizer, tools, limits), key, 1.0, env.is_parallel
        )
        for key in samples
    ]

    async def play(pool: Pool) -> None:
        expert, places = Expert(env, pool, tokenizer), Places(pool)

        async def play_row(row: AgentRow, problem: tuple[int, int | None]) -> None:
            await places.play(row, problem, expert)
            if row.last.failure is not None:
                raise ValueError(
                    f"{env.name} cannot be demonstrated, its program fails: "
                    f"{row.last.failure}"
                )

        await asyncio.gather(*map(play_row, rows, problems))

    with contextlib.closing(Pool(env.spec, TRAINING, num_rows)) as pool:
        asyncio.run(play(pool))
    fields = to_trajectory([row.played() for row in rows], limits, num_actions)
    return Trajectory(**fields, initial_state=None)


@functools.partial(jax.jit, static_argnames="count")
def _row_keys(keys: Key[Array, " B"], *, count: int) -> list[Key[Array, ""]]:
    return [keys[i] for i in range(count)]


@jax.jit
def _call_key(key: Key[Array, ""], prompt: Array, nth: Array) -> Key[Array, ""]:
    """Key of a call, by what is asked: the order of parallel calls changes no reply."""
    return jax.random.fold_in(jax.random.fold_in(key, prompt), nth)
