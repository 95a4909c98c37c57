"""Rollouts of host games, which step in worker processes between the turns.

In: a `HostGameEnv`, a policy and random keys. Out: a `Trajectory`, like that of the
compiled rollout. The model reads and replies on the device, in the functions of the
compiled rollout cut at the turn (`loop.TokenGame`); the host hands each reply to the
row's game, and the turn takes what the game answers. While the games of one half of the
rows step, the device writes the other half's replies. A process plays the games of the
rows that its devices hold.

A row whose game fails ends there, and none of its tokens is trained on.
"""

import asyncio
import collections
import copy
import dataclasses
import itertools
import sys
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from envs.base import EnvParams
from ragen_jax.devices import exchange
from ragen_jax.devices.sharding import by_rows, num_row_shards
from ragen_jax.host_games.workers.pool import Pool, WorkerResponse
from ragen_jax.host_games.wrappers import CUT_MARK
from ragen_jax.models.policy import Policy
from ragen_jax.rollout.collect import check_dialogue, given_settings
from ragen_jax.rollout.host.env import HostGameEnv, TokenOutput
from ragen_jax.rollout.host.images import RolloutImages, no_images
from ragen_jax.rollout.host.loop import (
    PlayedParams,
    TokenEpisodes,
    TokenGame,
    make_token_game,
    play_turns,
)
from ragen_jax.rollout.host.rows import answer_in, check_failures, draw_problems
from ragen_jax.rollout.keys import RolloutKeys, spread_levels
from ragen_jax.rollout.layout import RowLayout, check_rows
from ragen_jax.rollout.numbers import RolloutNumbers
from ragen_jax.rollout.turns import EpisodeLimits, GameStep, Play, RolloutContext, Turn
from ragen_jax.terminal import say
from ragen_jax.text.dialogue import Dialogue
from ragen_jax.text.tokenizer import Tokenizer
from ragen_jax.types import Params, Reply, Trajectory


class DeviceTurns:
    """Serialises device use between parts in a fixed order.

    So results do not depend on how fast games are. All processes of a run must start
    their programs in the same order.
    """

    def __init__(self, num_parts: int):
        self._order = collections.deque(range(num_parts))
        self._moved = asyncio.Condition()

    async def acquire(self, part: int) -> None:
        """Wait until it is the part's turn."""
        async with self._moved:
            await self._moved.wait_for(lambda: self._order[0] == part)

    async def release(self, part: int, for_good: bool = False) -> None:
        """End the part's turn; it comes again after the others', or never."""
        async with self._moved:
            self._order.remove(part)
            if not for_good:
                self._order.append(part)
            self._moved.notify_all()


def take_outputs(context: RolloutContext, turn: Turn, outputs: TokenOutput) -> GameStep:
    """`loop.MakeStep` of a host game: its workers have made the step."""
    del turn
    return context.env.take(context.env_params, outputs)


class HostGameEpisodes(TokenEpisodes):
    """Episodes of a host game; `HostEpisodes` of `play_turns`.

    Args:
      game: made with `take_outputs`.
      rows: the games of this process's rows.
      keys: of all rows; this process steps its own.
      turns: of the parts that share the devices; None for a single part.
      part: number of this part among them.
      images: of the rollout, of all parts; None: the games show none.

    Attributes:
      failures: of local rows whose game failed, and why.
      num_cut: observations that were too long.
    """

    def __init__(
        self,
        game: TokenGame,
        env: HostGameEnv,
        rows: Pool,
        tokenizer: Tokenizer,
        params: PlayedParams,
        dialogue: Dialogue,
        keys: RolloutKeys,
        turns: DeviceTurns | None = None,
        part: int = 0,
        images: RolloutImages | None = None,
    ):
        super().__init__(game, _with_images(params, images), dialogue, keys)
        self._images = images
        self._turns, self._part = turns or DeviceTurns(1), part
        self._env, self._games, self._tokenizer = env, rows, tokenizer
        self._thinking = dialogue.thinking
        self._rows = exchange.local_row_numbers(
            self.play.is_active.sharding, len(keys.level)
        )
        self._metrics = {
            name: np.full(len(self._rows), np.nan, np.float32) for name in env.metrics
        }
        # By the position among the local rows, like all else of the games.
        self.failures: dict[int, str] = {}
        self.num_cut = 0

    async def reset(self) -> None:
        """Begin the games; before the first turn."""
        problems = draw_problems(self._keys, self._env.num_tasks[self._keys.split])
        local = [[values[row] for row in self._rows] for values in problems]
        outputs = await asyncio.to_thread(self._games.reset, *local)
        outputs = show_failed(outputs, list(zip(*local, strict=True)))
        await self._turns.acquire(self._part)
        states = self.play.states.replace(
            output=self._token_outputs(dict(enumerate(outputs)))
        )
        self.play = self.play.replace(states=states)
        self._initial_state = states

    async def end(self) -> None:
        """Leave the devices to the other parts; after the last turn."""
        await self._turns.release(self._part, for_good=True)

    async def step(self, turn: int, reply: tuple[Play, Reply]) -> bool:
        play, written = reply
        asked = self._answers(exchange.local_rows(play.is_active), written)
        # A game that failed at its start is over before the first reply.
        asked = {row: x for row, x in asked.items() if row not in self.failures}
        await self._turns.release(self._part)
        outputs = await asyncio.to_thread(self._games.step, asked)
        await self._turns.acquire(self._part)
        return self._act(turn, reply, self._token_outputs(outputs))

    def trajectory(self) -> Trajectory:
        rollout = super().trajectory()
        metrics = {
            name: exchange.from_local_rows(values, rollout.success)
            for name, values in self._metrics.items()
        }
        rollout = rollout.replace(game_metrics=metrics)
        if not self.failures:
            return rollout
        mask = np.array(exchange.local_rows(rollout.loss_mask))
        mask[list(self.failures)] = False
        mask = exchange.from_local_rows(mask, rollout.loss_mask)
        return rollout.replace(loss_mask=mask)

    def _answers(self, is_active: np.ndarray, reply: Reply) -> dict[int, str]:
        tokens, lengths = map(exchange.local_rows, (reply.tokens, reply.length))
        spelled = self._tokenizer.token_bytes
        answers = {}
        for row in np.flatnonzero(is_active):
            ids = tokens[row, : lengths[row]]
            # A model may have more ids than its tokenizer: they spell nothing.
            text = b"".join(spelled[i] for i in ids if i < len(spelled))
            answer = answer_in(text, self._thinking)
            if answer is not None:
                answers[int(row)] = answer
        return answers

    def _token_outputs(self, outputs: Mapping[int, WorkerResponse]) -> TokenOutput:
        """The rows' latest outputs; rows without an answer keep the previous one."""
        before = self.play.states.output
        after = jax.tree.map(lambda x: np.array(exchange.local_rows(x)), before)
        for row, output in outputs.items():
            if len(output.images) > 1:
                output = _fail(output)
            if output.failure is not None:
                self.failures[row] = output.failure
            after.text[row] = self._ids(output)
            after.reward[row] = output.reward
            after.valid[row] = output.valid
            after.success[row] = output.success
            after.terminated[row] = output.terminated
            after.truncated[row] = output.was_cut
            for name in self._metrics.keys() & output.info.keys():
                self._metrics[name][row] = output.info[name]
        params, dialogue = self._fixed
        self._fixed = _with_images(params, self._images), dialogue
        return jax.tree.map(exchange.from_local_rows, after, before)

    def _ids(self, output: WorkerResponse) -> np.ndarray:
        """Ids of an observation, at most as many as fit, and their number."""
        limit, text = self._env.max_observation_tokens, output.text
        if output.images and text and not text.endswith("\n"):
            text += "\n"
        ids = encode_plain(self._tokenizer, text)
        if len(ids) > limit:
            self.num_cut += 1
            mark = encode_plain(self._tokenizer, CUT_MARK)[:limit]
            head = (limit - len(mark) + 1) // 2
            tail = limit - len(mark) - head
            ids = [*ids[:head], *mark, *ids[len(ids) - tail :]]
        for image in output.images:
            ids += self._images.ids(image)
        row = np.zeros(self._env.max_passage_tokens + 1, np.int32)
        row[: len(ids)], row[-1] = ids, len(ids)
        return row


def _with_images(
    played: PlayedParams | None, images: RolloutImages | None
) -> PlayedParams | None:
    """What a policy plays with, and the images; demonstrators play without any."""
    if played is None or images is None:
        return played
    params, given = played
    return params, given.replace(images=images.on_devices())


def _fail(output: WorkerResponse) -> WorkerResponse:
    return WorkerResponse(
        failure=f"it shows {len(output.images)} images at once, and training shows "
        "one; leave the others out with the wrapper ('images', 1) in host.wrappers"
    )


def show_failed(
    outputs: Sequence[WorkerResponse], problems: Sequence[tuple[int, int | None]]
) -> list[WorkerResponse]:
    """First outputs in which failed rows show what others of their problem show.

    The policy reads a group's first message once, in the group's first row, whose game
    may have failed (`collect.model_responder`).

    Args:
      outputs: of a reset, by row.
      problems: seed and task of each row.
    """
    pairs = list(zip(problems, outputs, strict=True))
    shown = {problem: x for problem, x in pairs if x.failure is None}

    def show(problem: tuple[int, int | None], failed: WorkerResponse):
        x = shown.get(problem, failed)
        return dataclasses.replace(failed, text=x.text, images=x.images)

    return [x if x.failure is None else show(problem, x) for problem, x in pairs]


class HostCollector:
    """Rollouts of a host game by a policy; called as what `make_collect` returns.

    Workers start with the first rollout and end with the program.

    Args:
      env, env_params: the game.
      policy, mesh, num_groups, group_size, rules: as of `make_collect`.
      temperature, top_k, top_p: see `sampling.sample`.
      tokenizer: spells the replies for the games.
      decoding: see `make_responder`.
    """

    def __init__(
        self,
        env: HostGameEnv,
        env_params: EnvParams,
        policy: Policy,
        *,
        tokenizer: Tokenizer,
        mesh: Mesh,
        num_groups: int,
        group_size: int,
        rules: EpisodeLimits,
        temperature: float,
        top_k: int | None = None,
        top_p: float | None = None,
        **decoding: float | None,
    ):
        _check_processes(env)
        self._make_game = lambda group_size: make_token_game(
            env,
            policy,
            RowLayout(mesh, group_size),
            rules,
            make_step=take_outputs,
            num_widths=env.num_widths,
            **decoding,
        )
        self._game = self._make_game(group_size)
        sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        self._given = given_settings(env_params, rules, mesh, **sampling)
        self._join = jax.jit(
            lambda *rollouts: jax.tree.map(lambda *x: jnp.concatenate(x), *rollouts),
            out_shardings=by_rows(mesh),
        )
        self._env, self._tokenizer, self._rules = env, tokenizer, rules
        self._mesh, self._model = mesh, policy.config
        self._set_sizes(num_groups, group_size)

    def _set_sizes(self, num_groups: int, group_size: int) -> None:
        check_rows(self._mesh, num_groups * group_size)
        self._num_parts = _num_parts(self._mesh, num_groups, group_size)
        self._group_size, self._num_rows = group_size, num_groups * group_size
        self._part_rows = self._num_rows // self._num_parts
        self._num_local = _num_local(self._mesh, self._part_rows)
        # Per split, the games of each part.
        self._games: dict[str, list[Pool]] = {}

    def with_numbers(self, numbers: RolloutNumbers) -> "HostCollector":
        """Rollouts by the same programs and workers with other numbers."""
        changed = copy.copy(self)
        changed._given = self._given.replace(numbers=numbers)
        return changed

    def for_evaluation(self, num_prompts: int, temperature: float) -> "HostCollector":
        """Rollouts by the same programs, with workers of their own; see `Collect`."""
        changed = copy.copy(self)
        changed._set_sizes(num_prompts, 1)
        given = self._given.for_evaluation(temperature, self._model.vocab_size)
        changed._given = given
        if given.shares_levels is None and self._group_size > 1:
            changed._game = self._make_game(1)
        return changed

    def __call__(
        self, params: Params, dialogue: Dialogue, keys: RolloutKeys
    ) -> Trajectory:
        check_dialogue(dialogue, self._rules)
        if keys.split not in self._games:
            self._games[keys.split] = [
                Pool(
                    self._env.spec,
                    keys.split,
                    self._num_local,
                    reads_images=self._env.image_grid is not None,
                )
                for _ in range(self._num_parts)
            ]
        keys = spread_levels(keys, self._group_size)
        fixed = self._tokenizer, (params, self._given), dialogue
        turns = DeviceTurns(self._num_parts)
        images = self._new_images(dialogue)
        parts = [
            HostGameEpisodes(
                self._game,
                self._env,
                rows,
                *fixed,
                self._part(keys, i),
                turns,
                i,
                images,
            )
            for i, rows in enumerate(self._games[keys.split])
        ]
        rollouts = asyncio.run(_play_in_turn(parts))
        _report(parts, self._num_rows, self._env)
        rollout = self._join(*rollouts)
        return rollout if images is None else rollout.replace(images=images.of_batch())

    def _new_images(self, dialogue: Dialogue) -> RolloutImages | None:
        if self._env.image_grid is None:
            return None
        sizes = self._num_rows, self._rules.budget.max_turns
        empty = no_images(dialogue.picture, self._model, *sizes)
        return RolloutImages(dialogue.picture, empty, self._tokenizer, self._mesh)

    def close(self) -> None:
        """End the workers, and with them a rollout in another thread."""
        for rows in itertools.chain(*self._games.values()):
            rows.close()
        self._games.clear()

    def _part(self, keys: RolloutKeys, index: int) -> RolloutKeys:
        start = index * self._part_rows
        return jax.tree.map(lambda x: x[start : start + self._part_rows], keys)


def _check_processes(env: HostGameEnv) -> None:
    if env.image_grid is not None and jax.process_count() > 1:
        raise ValueError(
            f"host.image_grid = {env.image_grid}, but one process numbers the images "
            f"of a rollout and this run has {jax.process_count()}; start it as one"
        )


def _num_local(mesh: Mesh, num_rows: int) -> int:
    """How many of `num_rows` this process steps."""
    num_local = len(exchange.local_row_numbers(by_rows(mesh), num_rows))
    if num_local * jax.process_count() != num_rows:
        raise ValueError(
            f"mesh.tensor = {mesh.shape['tensor']} gives the same rows to several "
            "processes, which would step the same host games; keep mesh.tensor "
            "within a process, and split over processes with mesh.data or mesh.fsdp"
        )
    return num_local


def _report(parts: Sequence[HostGameEpisodes], num_rows: int, env: HostGameEnv) -> None:
    """Report failed games and cut observations of all processes at once."""
    local = (
        [reason for part in parts for reason in part.failures.values()],
        sum(part.num_cut for part in parts),
    )
    failures, cuts = zip(*exchange.gather(local), strict=True)
    reasons = [reason for of_process in failures for reason in of_process]
    check_failures(reasons, num_rows, env.max_failed_fraction)
    warn_truncated(sum(cuts), env.max_observation_tokens)


def _num_parts(mesh: Mesh, num_groups: int, group_size: int) -> int:
    """2 if the groups split into equal halves, else 1."""
    num_rows = num_groups // 2 * group_size
    is_even = num_groups % 2 == 0 and num_rows % num_row_shards(mesh) == 0
    return 2 if is_even else 1


async def _play_in_turn(parts: Sequence[HostGameEpisodes]) -> list[Trajectory]:
    """Play all parts, each waiting for its games while the device serves another."""

    async def play(part: HostGameEpisodes) -> Trajectory:
        await part.reset()
        rollout = await play_turns(part, part.reply)
        await part.end()
        return rollout

    return await asyncio.gather(*map(play, parts))


def warn_truncated(count: int, max_tokens: int) -> None:
    """Say on standard error how many observations of a rollout were cut."""
    if count and exchange.is_first():
        say(
            f"note: {count} observations had more than host.max_observation_tokens = "
            f"{max_tokens} tokens and lost their middle",
            sys.stderr,
        )


def encode_plain(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text from outside: special tokens in it are letters like any others."""
    return tokenizer.plain.encode(text, add_special_tokens=False).ids
