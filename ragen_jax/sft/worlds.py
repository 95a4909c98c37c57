"""Demonstrations of games in Python, played on the host before the first step.

In: a task whose game runs in Python, demonstrators, random keys. Out: their episodes,
and sample texts for a new tokenizer. A demonstrator replies as the game's own solution
says. With the chance of its noise, and where the game knows no solution, its reply is
one of another problem's solution. It writes no thought.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ragen_jax.rollout.collect import RolloutKeys
from ragen_jax.rollout.demonstrators import ANSWER_BEGIN, Mixture
from ragen_jax.rollout.host import ArrayGame, play_turns
from ragen_jax.rollout.turns import Play, Responder
from ragen_jax.rollout.world_env import World, build_game
from ragen_jax.rollout.worlds import WorldEpisodes, say_cut
from ragen_jax.tasks import Task
from ragen_jax.text import chat
from ragen_jax.types import Reply, Trajectory
from ragen_jax.worlds.base import TRAINING, HostGame
from ragen_jax.worlds.pool import Answer

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
      ValueError: the game has no solutions, or a reply is too long.
    """
    world, num_rows = task.env, keys.level.shape[0]
    players = _Players(world, jax.device_get(mixture))
    game = ArrayGame(world, task.params, task.rules, lambda params, dialogue: _SILENT)
    rollouts, num_cut = [], 0
    for start in range(0, num_rows, NUM_ROWS):
        # The last rows may play an episode again: one shape is compiled once.
        rows = np.arange(start, start + NUM_ROWS) % num_rows
        part = jax.tree.map(lambda x, rows=rows: x[rows], keys)
        episodes = _Episodes(game, players, task, part)
        rollouts.append(jax.device_get(asyncio.run(_play(episodes))))
        num_cut += episodes.num_cut
    players.close()
    say_cut(num_cut, world.max_observation_tokens)
    return jax.tree.map(lambda *x: np.concatenate(x)[:num_rows], *rollouts)


def sample_texts(world: World) -> list[str]:
    """What some problems' episodes show and their solutions reply, a text an episode.

    Raises:
      ValueError: the game has no solutions.
    """
    return ["\n".join(texts) for texts, _ in _sample_episodes(world)]


async def _play(episodes: "_Episodes") -> Trajectory:
    await episodes.reset()
    return await play_turns(episodes, episodes.reply)


class _Players:
    """Games in this process and who plays them; answers like a `Pool`."""

    def __init__(self, world: World, mixture: Mixture):
        sampled = _sample_episodes(world)
        self._slips = [reply for _, replies in sampled for reply in replies]
        self._games = [build_game(world.spec, TRAINING) for _ in range(NUM_ROWS)]
        self._mixture = mixture

    def draw(self, seeds: Sequence[int]) -> None:
        """Choose the demonstrator of every row's next episode."""
        self._random = [random.Random(int(seed)) for seed in seeds]
        self._player = [self._choose(source) for source in self._random]
        # What is left of the solution that each follows; None: to be asked for.
        self._plans: list[list[str] | None] = [None] * len(self._player)

    def reset(self, seeds: Sequence[int], tasks: Sequence[int | None]) -> list[Answer]:
        problems = zip(self._games, seeds, tasks, strict=True)
        return [Answer(game.reset(seed, task).text) for game, seed, task in problems]

    def step(self, replies: Mapping[int, str]) -> dict[int, Answer]:
        def answer(game: HostGame, reply: str) -> Answer:
            step = game.step(reply)
            ends = step.terminated, step.truncated
            return Answer(step.observation.text, float(step.reward), *ends, step.info)

        return {row: answer(self._games[row], reply) for row, reply in replies.items()}

    def reply(self, row: int, turn: int) -> str:
        """The demonstrator's reply in a row's game."""
        source = self._random[row]
        if turn and source.random() < self._mixture.redraw:
            self._player[row] = self._choose(source)
        if source.random() < self._mixture.noise[self._player[row]]:
            self._plans[row] = None
            return source.choice(self._slips)
        # What is left of a solution is one; to find one can take a search.
        if self._plans[row] is None:
            self._plans[row] = list(self._games[row].solution())
        plan = self._plans[row]
        return plan.pop(0) if plan else source.choice(self._slips)

    def close(self) -> None:
        """Release the games."""
        for game in self._games:
            game.close()

    def _choose(self, source: random.Random) -> int:
        shares = self._mixture.shares
        return source.choices(range(len(shares)), weights=shares)[0]


class _Episodes(WorldEpisodes):
    """Episodes of demonstrators."""

    def __init__(
        self, game: ArrayGame, players: _Players, task: Task, keys: RolloutKeys
    ):
        fixed = game, task.env, players, task.tokenizer, None, task.dialogue, keys
        super().__init__(*fixed)
        players.draw(np.asarray(jax.vmap(jax.random.bits)(keys.sample)))
        self._limit = task.rules.max_reply_tokens
        self._begin = ANSWER_BEGIN if task.dialogue.thinking else ""

    async def reply(self, turn: int, play: Play) -> tuple[Play, Reply]:
        rows = np.flatnonzero(np.asarray(play.is_active)).tolist()
        replies = {row: self._pool.reply(row, turn) for row in rows}
        answers = self._pool.step(replies)
        states = play.states
        following = self._shown(answers, states.following)
        play = play.replace(states=states.replace(following=following))
        return play, self._written(replies)

    def _written(self, replies: Mapping[int, str]) -> Reply:
        """The replies as a model would write them."""
        tokens = np.zeros((NUM_ROWS, self._limit), np.int32)
        lengths = np.zeros(NUM_ROWS, np.int32)
        for row, reply in replies.items():
            text = f"{self._begin}{reply}</answer>{chat.END}"
            ids = self._tokenizer.encode(text)
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


def _sample_episodes(world: World) -> list[tuple[list[str], list[str]]]:
    """Texts and replies of some problems that are played by their solutions.

    Raises:
      ValueError: no problem has a solution.
    """
    game = build_game(world.spec, TRAINING)
    sampled = [_solve(game, seed) for seed in range(NUM_SAMPLES)]
    game.close()
    if not any(replies for _, replies in sampled):
        raise ValueError(
            f"{world.name} cannot be demonstrated: `solution` of its game knows no "
            "replies that win"
        )
    return sampled


def _solve(game: HostGame, seed: int) -> tuple[list[str], list[str]]:
    """All texts of an episode, and the replies among them."""
    texts = [game.reset(seed).text]
    replies = list(game.solution())
    for reply in replies:
        texts += [reply, game.step(reply).observation.text]
    return texts, replies
