"""Demonstrations of host games, played before the first step.

In: the task of a host game, demonstrators, random keys. Out: their episodes, and sample
texts for a new tokenizer. A demonstrator replies as the game's own solution says. With
the chance of its noise, and where the game knows no solution, its reply is one of
another problem's solution. It writes no thought.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from envs.base import TRAINING
from ragen_jax.devices.sharding import make_mesh
from ragen_jax.models.config import ModelConfig
from ragen_jax.rollout.demonstrators import ANSWER_BEGIN, Mixture
from ragen_jax.rollout.host.env import HostGameEnv
from ragen_jax.rollout.host.games import (
    HostGameEpisodes,
    take_outputs,
    warn_truncated,
)
from ragen_jax.rollout.host.images import RolloutImages, no_images
from ragen_jax.rollout.host.loop import SILENT, TokenGame, play_turns
from ragen_jax.rollout.host.rows import Pool, SolvedEpisode, play_solutions
from ragen_jax.rollout.keys import RolloutKeys
from ragen_jax.rollout.turns import Play, RolloutContext
from ragen_jax.tasks.task import AgentTask, HostTask
from ragen_jax.types import Reply, Trajectory

# Episodes that are played side by side.
NUM_ROWS = 64
# Of agents, each of which has a process.
NUM_AGENTS = 16
# Problems whose solutions slips are drawn from, and whose texts a tokenizer covers.
NUM_SAMPLES = 200


def play_demonstrations(
    task: HostTask,
    mixture: Mixture,
    keys: RolloutKeys,
    model: ModelConfig | None = None,
) -> Trajectory:
    """Episodes of demonstrators, one per key, on the host.

    Args:
      task: with its dialogue.
      mixture: shares and noise of the demonstrators; their thoughts are not written.
      keys: one level key per row.
      model: the network that sees the game's images.

    Raises:
      ValueError: the game has no solutions or fails, or a reply is too long.
    """
    if isinstance(task, AgentTask):
        return task.demonstrate(keys, NUM_AGENTS)
    env, num_rows = task.env, keys.level.shape[0]
    mixture = jax.device_get(mixture)
    game = TokenGame(
        task.rules,
        lambda params, dialogue: RolloutContext(
            env, task.params, dialogue, SILENT, task.rules
        ),
        make_step=take_outputs,
    )
    rollouts, num_cut = [], 0
    images = None
    if env.image_grid is not None:
        sizes = num_rows + NUM_ROWS, task.rules.budget.max_turns
        empty = no_images(task.dialogue.picture, model, *sizes)
        mesh = make_mesh(data=1, fsdp=1, tensor=1)
        images = RolloutImages(task.dialogue.picture, empty, task.tokenizer, mesh)
    with contextlib.closing(_games(env)) as games:
        slips = [reply for x in _sample_episodes(env, games) for reply in x.solution]
        for start in range(0, num_rows, NUM_ROWS):
            # The last rows may play an episode again: one shape is compiled once.
            rows = np.arange(start, start + NUM_ROWS) % num_rows
            part = jax.tree.map(lambda x, rows=rows: x[rows], keys)
            episodes = _Episodes(game, task, games, part, mixture, slips, images)
            rollouts.append(jax.device_get(asyncio.run(_play(episodes))))
            num_cut += episodes.num_cut
    warn_truncated(num_cut, env.max_observation_tokens)
    rollout = jax.tree.map(lambda *x: np.concatenate(x)[:num_rows], *rollouts)
    return rollout if images is None else rollout.replace(images=images.on_devices())


def sample_texts(env: HostGameEnv) -> list[str]:
    """What some problems' episodes show and their solutions reply, a text an episode.

    Raises:
      ValueError: the game has no solutions, or fails.
    """
    with contextlib.closing(_games(env)) as games:
        return ["\n".join(_texts(x)) for x in _sample_episodes(env, games)]


def _games(env: HostGameEnv) -> Pool:
    env.check_sessions(**{"episodes of demonstrators at a time": NUM_ROWS})
    sees = env.image_grid is not None
    return Pool(env.spec, TRAINING, NUM_ROWS, reads_images=sees)


async def _play(episodes: "_Episodes") -> Trajectory:
    await episodes.reset()
    return await play_turns(episodes, episodes.reply)


class _Episodes(HostGameEpisodes):
    """Episodes of demonstrators, whose replies are `slips` where they slip."""

    def __init__(
        self,
        game: TokenGame,
        task: HostTask,
        games: Pool,
        keys: RolloutKeys,
        mixture: Mixture,
        slips: Sequence[str],
        images: RolloutImages | None,
    ):
        how = task.tokenizer, None, task.dialogue, keys
        super().__init__(game, task.env, games, *how, images=images)
        self._mixture, self._slips = mixture, slips
        self._limit = task.rules.max_reply_tokens
        self._begin = ANSWER_BEGIN if task.dialogue.thinking else ""
        # Per row its demonstrator, and the rest of the solution that it follows.
        self._player = np.zeros(NUM_ROWS, np.int32)
        self._plans: dict[int, list[str]] = {}

    async def reset(self) -> None:
        await super().reset()
        _refuse_failures(self._env, self.failures.values())

    async def reply(self, turn: int, play: Play) -> tuple[Play, Reply]:
        rows = np.flatnonzero(np.asarray(play.is_active))
        return play, self._written(self._chosen(turn, rows))

    async def step(self, turn: int, reply: tuple[Play, Reply]) -> bool:
        # The games get what the tokens say, as from a policy.
        goes_on = await super().step(turn, reply)
        _refuse_failures(self._env, self.failures.values())
        return goes_on

    def _chosen(self, turn: int, rows: np.ndarray) -> dict[int, str]:
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
        solved = self._games.solve(unknown)
        _refuse_failures(self._env, (output.failure for output in solved.values()))
        self._plans |= {row: list(x.solution) for row, x in solved.items()}
        return {
            row: self._plans[row].pop(0)
            if self._plans.get(row)
            else self._slips[int(choices[row] * len(self._slips))]
            for row in rows.tolist()
        }

    def _written(self, replies: Mapping[int, str]) -> Reply:
        tokens = np.zeros((NUM_ROWS, self._limit), np.int32)
        lengths = np.zeros(NUM_ROWS, np.int32)
        for row, reply in replies.items():
            text = f"{self._begin}{reply}</answer>{self._tokenizer.markup.end}"
            ids = self._tokenizer.encode(text)
            if len(ids) > self._limit:
                raise ValueError(
                    f"a demonstrated reply of {self._env.name} takes {len(ids)} "
                    f"tokens, max_reply_tokens = {self._limit}; raise it: {reply!r}"
                )
            tokens[row, : len(ids)], lengths[row] = ids, len(ids)
        return Reply(
            tokens=jnp.asarray(tokens),
            log_probs=jnp.zeros(tokens.shape, jnp.float32),
            length=jnp.asarray(lengths),
            is_cut=jnp.zeros(NUM_ROWS, bool),
        )


def _sample_episodes(env: HostGameEnv, games: Pool) -> list[SolvedEpisode]:
    sampled, tasks = [], [None] * NUM_ROWS
    for start in range(0, NUM_SAMPLES, NUM_ROWS):
        sampled += play_solutions(games, range(start, start + NUM_ROWS), tasks)
    _refuse_failures(env, (episode.failure for episode in sampled))
    sampled = sampled[:NUM_SAMPLES]
    if not any(episode.solution for episode in sampled):
        raise ValueError(
            f"{env.name} cannot be demonstrated: `solution` of its game knows no "
            "replies that win"
        )
    return sampled


def _texts(episode: SolvedEpisode) -> list[str]:
    first, *others = (output.text for output in episode.outputs)
    pairs = zip(episode.solution, others, strict=False)
    return [first, *(text for pair in pairs for text in pair)]


def _refuse_failures(env: HostGameEnv, failures: Iterable[str | None]) -> None:
    for failure in failures:
        if failure is not None:
            raise ValueError(
                f"{env.name} cannot be demonstrated, its game fails: {failure}"
            )
