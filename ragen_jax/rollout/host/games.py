"""Rollouts of games in Python, which step in worker processes between the turns.

In: a `HostGame` by name, a policy and random keys. Out: a `Trajectory`, like that of
the compiled rollout. The model reads and replies on the device, in the functions of the
compiled rollout cut at the turn (`host.ArrayGame`); the host hands each reply to the
row's game and puts the answer into the row's state, from where the turn takes it. While
the games of one half of the rows step, the device writes the other half's replies. A
process plays the games of the rows that its devices hold.

A row whose game fails ends there, and none of its tokens is trained on.
"""

import asyncio
import collections
import itertools
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from envs import base
from ragen_jax.host_games.workers.pool import Pool, WorkerResponse
from ragen_jax.host_games.wrappers import CUT_MARK
from ragen_jax.models.policy import Policy
from ragen_jax.multihost import exchange
from ragen_jax.rollout.collect import check_dialogue
from ragen_jax.rollout.host.env import Shown, World
from ragen_jax.rollout.host.loop import (
    ArrayEpisodes,
    ArrayGame,
    make_array_game,
    play_turns,
)
from ragen_jax.rollout.keys import RolloutKeys, spread_levels
from ragen_jax.rollout.layout import RowLayout
from ragen_jax.rollout.turns import EpisodeLimits, Play
from ragen_jax.sharding import by_rows, num_row_shards
from ragen_jax.text.dialogue import Dialogue
from ragen_jax.text.messages import find_answer, parse_text
from ragen_jax.text.tokenizer import Tokenizer
from ragen_jax.types import Params, Reply, Trajectory


class GamesFailed(ValueError):
    """More games of a rollout failed than may."""


class Rotation:
    """Lets parts use the devices in turn, in an order that no game's speed changes.

    All processes of a run must start their programs in the same order.
    """

    def __init__(self, num_parts: int):
        self._order = collections.deque(range(num_parts))
        self._moved = asyncio.Condition()

    async def enter(self, part: int) -> None:
        """Wait until it is the part's turn."""
        async with self._moved:
            await self._moved.wait_for(lambda: self._order[0] == part)

    async def leave(self, part: int, for_good: bool = False) -> None:
        """End the part's turn; it comes again after the others', or never."""
        async with self._moved:
            self._order.remove(part)
            if not for_good:
                self._order.append(part)
            self._moved.notify_all()


class WorldEpisodes(ArrayEpisodes):
    """Episodes of a game in Python; `HostEpisodes` of `play_turns`.

    Args:
      keys: of all rows; this process steps its own.
      rotation: of the parts that share the devices; None: there are no others.
      number: of this part in the rotation.

    Attributes:
      failures: of own rows whose game failed, and why.
      num_cut: observations that were too long.
    """

    def __init__(
        self,
        game: ArrayGame,
        world: World,
        pool: Pool,
        tokenizer: Tokenizer,
        params: Params,
        dialogue: Dialogue,
        keys: RolloutKeys,
        rotation: Rotation | None = None,
        number: int = 0,
    ):
        super().__init__(game, params, dialogue, keys)
        self._rotation, self._number = rotation or Rotation(1), number
        self._world, self._pool, self._tokenizer = world, pool, tokenizer
        self._thinking = dialogue.thinking
        self._rows = exchange.local_row_numbers(
            self.play.is_active.sharding, len(keys.level)
        )
        self._metrics = {
            name: np.full(len(self._rows), np.nan, np.float32) for name in world.metrics
        }
        # By the position among the own rows, like all else of the games.
        self.failures: dict[int, str] = {}
        self.num_cut = 0

    async def reset(self) -> None:
        """Begin the games; before the first turn."""
        problems = draw_problems(self._keys, self._world.num_tasks[self._keys.split])
        own = ([values[row] for row in self._rows] for values in problems)
        answers = await asyncio.to_thread(self._pool.reset, *own)
        await self._rotation.enter(self._number)
        states = self.play.states
        self.play = self.play.replace(
            states=states.replace(now=self._shown(dict(enumerate(answers)), states.now))
        )
        self._initial_state = self.play.states

    async def give_way(self) -> None:
        """Leave the devices to the other parts; after the last turn."""
        await self._rotation.leave(self._number, for_good=True)

    async def reply(self, turn: int, play: Play) -> tuple[Play, Reply]:
        """The replies to a prompt; the states hold what the games answer them."""
        play, written = await super().reply(turn, play)
        asked = self._replies(exchange.local_rows(play.is_active), written)
        # A game that failed at its start is over before the first reply.
        lost = {
            row: WorkerResponse(failure=self.failures[row])
            for row in asked
            if row in self.failures
        }
        replies = {r: t for r, t in asked.items() if r not in lost}
        await self._rotation.leave(self._number)
        answers = await asyncio.to_thread(self._pool.step, replies)
        await self._rotation.enter(self._number)
        states = play.states
        following = self._shown(answers | lost, states.following)
        return play.replace(states=states.replace(following=following)), written

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

    def _replies(self, is_active: np.ndarray, reply: Reply) -> dict[int, str]:
        """The answers of the rows that gave one, as their games get them."""
        tokens, lengths = map(exchange.local_rows, (reply.tokens, reply.length))
        spelled = self._tokenizer.token_bytes
        found = {}
        for row in np.flatnonzero(is_active):
            ids = tokens[row, : lengths[row]]
            # A model may have more ids than its tokenizer: they spell nothing.
            text = b"".join(spelled[i] for i in ids if i < len(spelled))
            answer = answer_in(text, self._thinking)
            if answer is not None:
                found[int(row)] = answer
        return found

    def _shown(self, answers: Mapping[int, WorkerResponse], before: Shown) -> Shown:
        """What rows show now; those without an answer show what they did."""
        shown = jax.tree.map(lambda x: np.array(exchange.local_rows(x)), before)
        for row, answer in answers.items():
            answer = answer.in_text()
            if answer.failure is not None:
                self.failures[row] = answer.failure
            shown.text[row] = self._ids(answer.text)
            shown.reward[row] = answer.reward
            shown.valid[row] = bool(answer.info.get("valid", True))
            shown.success[row] = bool(answer.info.get("success", False))
            shown.terminated[row] = answer.terminated
            shown.truncated[row] = answer.truncated or answer.failure is not None
            for name in self._metrics.keys() & answer.info.keys():
                self._metrics[name][row] = answer.info[name]
        return jax.tree.map(exchange.from_local_rows, shown, before)

    def _ids(self, text: str) -> np.ndarray:
        """Ids of an observation, at most as many as fit, and their number."""
        limit = self._world.max_observation_tokens
        ids = encode_plain(self._tokenizer, text)
        if len(ids) > limit:
            self.num_cut += 1
            mark = encode_plain(self._tokenizer, CUT_MARK)[:limit]
            head = (limit - len(mark) + 1) // 2
            tail = limit - len(mark) - head
            ids = [*ids[:head], *mark, *ids[len(ids) - tail :]]
        row = np.zeros(limit + 1, np.int32)
        row[: len(ids)], row[-1] = ids, len(ids)
        return row


def answer_in(reply: bytes, thinking: bool) -> str | None:
    """The answer of a reply as its game gets it; None without one.

    As on the device, an answer without a word is no action.
    """
    text = reply.decode("utf-8", "replace")
    parsed = parse_text(text, (), max_actions=1, thinking=thinking, answer_bytes=1)
    if not parsed.num_names:
        return None
    return find_answer(reply, thinking).decode("utf-8", "replace").strip()


def draw_problems(
    keys: RolloutKeys, num_tasks: int | None
) -> tuple[list[int], list[int | None]]:
    """Seed and task of every row, from its level key: those of a group share both."""
    bits = jax.vmap(lambda key: jax.random.bits(key, (2,), jnp.uint32))(keys.level)
    seeds, choices = (np.asarray(bits).T >> 1).tolist()
    if num_tasks is None:
        return seeds, [None] * len(seeds)
    return seeds, [choice % num_tasks for choice in choices]


def make_world_collect(
    world: World,
    env_params: base.EnvParams,
    policy: Policy,
    *,
    tokenizer: Tokenizer,
    mesh: Mesh,
    num_groups: int,
    group_size: int,
    rules: EpisodeLimits,
    **decoding: float | None,
) -> Callable[[Params, Dialogue, RolloutKeys], Trajectory]:
    """Rollouts of a game in Python; arguments and result as of `make_collect`.

    Workers start with the first rollout and end with the program.
    """
    num_parts = _num_parts(mesh, num_groups, group_size)
    layout = RowLayout(mesh, num_groups // num_parts, group_size)
    game = make_array_game(
        world,
        env_params,
        policy,
        layout,
        rules,
        num_widths=world.num_widths,
        **decoding,
    )
    join = jax.jit(
        lambda *rollouts: jax.tree.map(lambda *x: jnp.concatenate(x), *rollouts),
        out_shardings=by_rows(mesh),
    )
    num_rows = num_groups * group_size // num_parts
    num_own = _num_own(mesh, num_rows)
    pools: dict[str, list[Pool]] = {}

    def open_pools(split: str) -> list[Pool]:
        opened = [Pool(world.spec, split, num_own) for _ in range(num_parts)]
        for pool in opened:
            weakref.finalize(collect, pool.close)
        return opened

    def collect(params: Params, dialogue: Dialogue, keys: RolloutKeys) -> Trajectory:
        check_dialogue(dialogue, rules)
        if keys.split not in pools:
            pools[keys.split] = open_pools(keys.split)
        keys = spread_levels(keys, group_size)
        fixed, rotation = (tokenizer, params, dialogue), Rotation(num_parts)
        parts = [
            WorldEpisodes(
                game, world, pool, *fixed, _part(keys, i, num_rows), rotation, i
            )
            for i, pool in enumerate(pools[keys.split])
        ]
        rollouts = asyncio.run(_play_in_turn(parts))
        _report(parts, num_groups * group_size, world)
        return join(*rollouts)

    def stop() -> None:
        """End the workers, and with them a rollout in another thread."""
        for pool in itertools.chain(*pools.values()):
            pool.close()
        pools.clear()

    collect.stop = stop
    return collect


def _num_own(mesh: Mesh, num_rows: int) -> int:
    """Rows of so many that this process steps.

    Raises:
      ValueError: another process would step them, too.
    """
    num_own = len(exchange.local_row_numbers(by_rows(mesh), num_rows))
    if num_own * jax.process_count() != num_rows:
        raise ValueError(
            f"mesh.tensor = {mesh.shape['tensor']} gives the same rows to several "
            "processes, which would step the same games in Python; keep mesh.tensor "
            "within a process, and split over processes with mesh.data or mesh.fsdp"
        )
    return num_own


def _report(parts: Sequence[WorldEpisodes], num_rows: int, world: World) -> None:
    """Say what failed and what was cut in all processes; together.

    Raises:
      GamesFailed: too many games failed.
    """
    own = (
        [reason for part in parts for reason in part.failures.values()],
        sum(part.num_cut for part in parts),
    )
    failures, cuts = zip(*exchange.gather(own), strict=True)
    reasons = [reason for of_process in failures for reason in of_process]
    check_failures(reasons, num_rows, world.max_failed_fraction)
    warn_truncated(sum(cuts), world.max_observation_tokens)


def _num_parts(mesh: Mesh, num_groups: int, group_size: int) -> int:
    """Halves that are played in turn; 1 where there are none of equal size."""
    num_rows = num_groups // 2 * group_size
    is_even = num_groups % 2 == 0 and num_rows % num_row_shards(mesh) == 0
    return 2 if is_even else 1


def _part(keys: RolloutKeys, index: int, num_rows: int) -> RolloutKeys:
    """Keys of so many adjacent rows."""
    start = index * num_rows
    return jax.tree.map(lambda x: x[start : start + num_rows], keys)


async def _play_in_turn(parts: Sequence[WorldEpisodes]) -> list[Trajectory]:
    """Play all parts, each waiting for its games while the device serves another."""

    async def play(part: WorldEpisodes) -> Trajectory:
        await part.reset()
        rollout = await play_turns(part, part.reply)
        await part.give_way()
        return rollout

    return await asyncio.gather(*map(play, parts))


def check_failures(reasons: Sequence[str], num_rows: int, max_share: float) -> None:
    """Say on standard error why games failed, games of all processes.

    Args:
      reasons: of each that did.
      num_rows: games in all.
      max_share: of them that may fail.

    Raises:
      GamesFailed: too many did.
    """
    if not reasons:
        return
    reason, count = collections.Counter(reasons).most_common(1)[0]
    words = f"{len(reasons)} of {num_rows} games failed, {count} of them: {reason}"
    if len(reasons) > max_share * num_rows:
        limit = f"rollout.max_failed_fraction = {max_share:g} is the largest share"
        remedy = "mend the game" + (", or raise it" if len(reasons) < num_rows else "")
        raise GamesFailed(f"{words}; {limit} that may: {remedy}")
    if exchange.is_first():
        print(
            f"warning: {words}; their episodes are not trained on and not won",
            file=sys.stderr,
        )


def warn_truncated(count: int, max_tokens: int) -> None:
    """Say on standard error how many observations of a rollout were cut."""
    if count and exchange.is_first():
        print(
            f"note: {count} observations had more than host.max_observation_tokens = "
            f"{max_tokens} tokens and lost their middle",
            file=sys.stderr,
        )


def encode_plain(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text from outside: special tokens in it are letters like any others."""
    return tokenizer.plain.encode(text, add_special_tokens=False).ids
