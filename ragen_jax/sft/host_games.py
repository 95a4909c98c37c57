"""Demonstrations of games in Python, played on the host before the first step.

In: a task whose game runs in Python, demonstrators, random keys. Out: their episodes,
and sample texts for a new tokenizer. A demonstrator replies as the game's own solution
says. With the chance of its noise, and where the game knows no solution, its reply is
one of another problem's solution. It writes no thought.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ragen_jax.host_games.base import TRAINING
from ragen_jax.host_games.workers.pool import Pool, WorkerResponse
from ragen_jax.rollout.demonstrators import ANSWER_BEGIN, Mixture
from ragen_jax.rollout.host.env import World
from ragen_jax.rollout.host.games import WorldEpisodes, warn_truncated
from ragen_jax.rollout.host.loop import ArrayGame, play_turns
from ragen_jax.rollout.keys import RolloutKeys
from ragen_jax.rollout.turns import Play, Responder
from ragen_jax.tasks.task import Task
from ragen_jax.text import chat
from ragen_jax.types import Reply, Trajectory

# Episodes that are played side by side.
NUM_ROWS = 64
# Problems whose solutions slips are drawn from, and whose texts a tokenizer covers.
NUM_SAMPLES = 200
# Writes nothing and reads nothing: replies come from the host.
_SILENT = Responder(
    init=lambda num_rows: (),
    observe=lambda carry, *_: carry,
    reply=lambda carry, *_: (carry, None),
)


def play_demonstrations(task: Task, mixture: Mixture, keys: RolloutKeys) -> Trajectory:
    """Episodes of demonstrators, one per key, on the host.

    Args:
      task: of a `World`, with its dialogue.
      mixture: shares and noise of the demonstrators; their thoughts are not written.
      keys: one level key per row.

    Raises:
      ValueError: the game has no solutions or fails, or a reply is too long.
    """
    world, num_rows = task.env, keys.level.shape[0]
    mixture = jax.device_get(mixture)
    game = ArrayGame(world, task.params, task.rules, lambda params, dialogue: _SILENT)
    rollouts, num_cut = [], 0
    with contextlib.closing(Pool(world.spec, TRAINING, NUM_ROWS)) as pool:
        sampled = _sample_episodes(world, pool)
        slips = [reply for _, replies in sampled for reply in replies]
        for start in range(0, num_rows, NUM_ROWS):
            # The last rows may play an episode again: one shape is compiled once.
            rows = np.arange(start, start + NUM_ROWS) % num_rows
            part = jax.tree.map(lambda x, rows=rows: x[rows], keys)
            episodes = _Episodes(game, task, pool, part, mixture, slips)
            rollouts.append(jax.device_get(asyncio.run(_play(episodes))))
            num_cut += episodes.num_cut
    warn_truncated(num_cut, world.max_observation_tokens)
    return jax.tree.map(lambda *x: np.concatenate(x)[:num_rows], *rollouts)


def sample_texts(world: World) -> list[str]:
    """What some problems' episodes show and their solutions reply, a text an episode.

    Raises:
      ValueError: the game has no solutions, or fails.
    """
    with contextlib.closing(Pool(world.spec, TRAINING, NUM_ROWS)) as pool:
        return ["\n".join(texts) for texts, _ in _sample_episodes(world, pool)]


async def _play(episodes: "_Episodes") -> Trajectory:
    await episodes.reset()
    return await play_turns(episodes, episodes.reply)


class _Episodes(WorldEpisodes):
    """Episodes of demonstrators, whose replies are `slips` where they slip."""

    def __init__(
        self,
        game: ArrayGame,
        task: Task,
        pool: Pool,
        keys: RolloutKeys,
        mixture: Mixture,
        slips: Sequence[str],
    ):
        super().__init__(
            game, task.env, pool, task.tokenizer, None, task.dialogue, keys
        )
        self._mixture, self._slips = mixture, slips
        self._limit = task.rules.max_reply_tokens
        self._begin = ANSWER_BEGIN if task.dialogue.thinking else ""
        # Per row its demonstrator, and the rest of the solution that it follows.
        self._player = np.zeros(NUM_ROWS, np.int32)
        self._plans: dict[int, list[str]] = {}

    async def reset(self) -> None:
        await super().reset()
        for failure in self.failures.values():
            _check(self._world, {0: WorkerResponse(failure=failure)})

    async def reply(self, turn: int, play: Play) -> tuple[Play, Reply]:
        is_active = np.asarray(play.is_active)
        written = self._written(self._chosen(turn, np.flatnonzero(is_active)))
        # The games get what the tokens say, as from a policy.
        answers = self._pool.step(self._replies(is_active, written))
        following = self._shown(answers, play.states.following)
        _check(self._world, answers)
        return play.replace(states=play.states.replace(following=following)), written

    def _chosen(self, turn: int, rows: np.ndarray) -> dict[int, str]:
        """The demonstrators' replies in some rows."""
        keys = jax.vmap(jax.random.fold_in, (0, None))(self._keys.sample, turn)
        draws = np.asarray(jax.vmap(lambda key: jax.random.uniform(key, (4,)))(keys))
        redraws, players, slips, choices = draws.T
        changes = (redraws < self._mixture.redraw) | (turn == 0)
        drawn = np.searchsorted(np.cumsum(self._mixture.shares), players)
        drawn = np.minimum(drawn, len(self._mixture.shares) - 1)
        self._player = np.where(changes, drawn, self._player)
        slips = slips < self._mixture.noise[self._player]
        for row in rows[slips[rows]].tolist():
            self._plans.pop(row, None)
        # The rest of a solution still wins; a new one may take a search.
        follows = rows[~slips[rows]].tolist()
        unknown = [row for row in follows if not self._plans.get(row)]
        answers = self._pool.solve(unknown)
        _check(self._world, answers)
        self._plans |= {row: list(x.solution) for row, x in answers.items()}
        return {
            row: self._plans[row].pop(0)
            if self._plans.get(row)
            else self._slips[int(choices[row] * len(self._slips))]
            for row in rows.tolist()
        }

    def _written(self, replies: Mapping[int, str]) -> Reply:
        """The replies as a model would write them."""
        tokens = np.zeros((NUM_ROWS, self._limit), np.int32)
        lengths = np.zeros(NUM_ROWS, np.int32)
        for row, reply in replies.items():
            ids = self._tokenizer.encode(f"{self._begin}{reply}</answer>{chat.END}")
            if len(ids) > self._limit:
                raise ValueError(
                    f"a demonstrated reply of {self._world.name} takes {len(ids)} "
                    f"tokens, max_reply_tokens = {self._limit}; raise it: {reply!r}"
                )
            tokens[row, : len(ids)], lengths[row] = ids, len(ids)
        return Reply(
            tokens=jnp.asarray(tokens),
            log_probs=jnp.zeros(tokens.shape, jnp.float32),
            length=jnp.asarray(lengths),
            is_cut=jnp.zeros(NUM_ROWS, bool),
        )


def _sample_episodes(world: World, pool: Pool) -> list[tuple[list[str], list[str]]]:
    """Texts and replies of some problems that are played by their solutions.

    Raises:
      ValueError: no problem has a solution, or the game fails.
    """
    sampled = []
    for start in range(0, NUM_SAMPLES, NUM_ROWS):
        sampled += _solve(world, pool, range(start, start + NUM_ROWS))
    sampled = sampled[:NUM_SAMPLES]
    if not any(replies for _, replies in sampled):
        raise ValueError(
            f"{world.name} cannot be demonstrated: `solution` of its game knows no "
            "replies that win"
        )
    return sampled


def _solve(
    world: World, pool: Pool, seeds: Sequence[int]
) -> list[tuple[list[str], list[str]]]:
    """All texts of an episode of every seed, and the replies among them."""
    shown = dict(enumerate(pool.reset(seeds, [None] * len(seeds))))
    _check(world, shown)
    found = pool.solve(list(shown))
    _check(world, found)
    texts = {row: [answer.text] for row, answer in shown.items()}
    left = {row: list(answer.solution) for row, answer in found.items()}
    while asked := {row: replies.pop(0) for row, replies in left.items() if replies}:
        answers = pool.step(asked)
        _check(world, answers)
        for row, answer in answers.items():
            texts[row] += [asked[row], answer.text]
            if answer.is_over:
                left[row].clear()
    return [(texts[row], list(found[row].solution)) for row in shown]


def _check(world: World, answers: Mapping[int, WorkerResponse]) -> None:
    """Refuse a game that fails while it is demonstrated."""
    for answer in answers.values():
        if answer.failure is not None:
            raise ValueError(
                f"{world.name} cannot be demonstrated, its game fails: {answer.failure}"
            )
