"""Demonstrations: tasks, mixtures of demonstrators, and batches of episodes.

In: the sections `games`, `demonstrators` and `mixture` of the configuration. Out:
batches of dialogue tokens with the replies marked, and the texts that a new tokenizer
has to cover. Array games are played on the device at every step; host games are played
before the first (`host_games.py`), and a step takes its episodes from these. Knows no
model and no loss.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key
from ml_collections import ConfigDict

from envs.base import NO_FACTS, EnvParams, PlayBudget, StateFacts, TextGame
from ragen_jax import rngs
from ragen_jax.learner.batch import row_tokens, to_rows
from ragen_jax.models.config import ModelConfig
from ragen_jax.rollout.collect import play_episodes
from ragen_jax.rollout.demonstrators import (
    NONE,
    PREDICTING,
    THOUGHTS,
    Mixture,
    build_responder,
    compile_replies,
    reply_template,
    with_predictions,
)
from ragen_jax.rollout.keys import RolloutKeys
from ragen_jax.rollout.turns import EpisodeLimits
from ragen_jax.sft.host_games import play_demonstrations, sample_texts
from ragen_jax.sft.pocket_tokenizer import common_words
from ragen_jax.tasks.build import make_task
from ragen_jax.tasks.specs import EnvSpec, env_params, make_env
from ragen_jax.tasks.task import Task
from ragen_jax.text.dialogue import Dialogue
from ragen_jax.text.pictures import show_boards
from ragen_jax.text.prompts import build_prompts
from ragen_jax.text.token_templates import DeviceTemplate
from ragen_jax.text.tokenizer import Tokenizer
from ragen_jax.types import Images, Trajectory

# A new tokenizer gets the words that at least this share of a host game's episodes has.
COMMON_SHARE = 0.05


@dataclasses.dataclass(frozen=True)
class DemoTask:
    """A task and its demonstrations.

    Attributes:
      task: environment, dialogue and rules.
      planning_params: environment parameters that demonstrators plan with.
      facts: what their thoughts can state.
      episodes: number of episodes per step.
      num_demonstrations: size of the data set; None: every step plays new episodes.
      noise: replaces the demonstrators' chance of random actions; None keeps theirs.
    """

    task: Task
    planning_params: EnvParams
    facts: StateFacts
    episodes: int
    num_demonstrations: int | None
    noise: float | None


@struct.dataclass
class Draw:
    """Episodes of one task in one step. Axis `E`: episodes.

    Attributes:
      key: root of their random keys.
      numbers: an episode is determined by `key` and its number.
      mask: False for episodes after the last epoch: played, but not trained on.
    """

    key: Key[Array, ""]
    numbers: Int[Array, " E"]
    mask: Bool[Array, " E"]


@struct.dataclass
class Batch:
    """Demonstrated episodes of all tasks: whole dialogues, or turns with their prompts.

    Attributes:
      tokens, lengths: padded on the right.
      loss_mask: tokens of replies.
      images: those that tokens name, not an array of rows; None: they name none.
    """

    tokens: Int[Array, "B T"]
    lengths: Int[Array, " B"]
    loss_mask: Bool[Array, "B T"]
    images: Images | None = None


@struct.dataclass
class DataSet:
    """Episodes of a host game. Axis `N`: episodes, `R`: rows of an episode.

    Attributes:
      rows: a `Batch` whose arrays have the leading axes `N`, `R`.
      success: of the demonstrators.
      images: of all episodes; None: the game shows none.
    """

    rows: Batch
    success: Bool[Array, " N"]
    images: Images | None = None


def build_demo_tasks(config: ConfigDict, tokenizer: Tokenizer) -> dict[str, DemoTask]:
    """The tasks of `config.games` with their demonstrations.

    Raises:
      ValueError: an environment or a parameter does not exist, or thoughts should state
        facts of a game that defines none.
    """
    tasks = build_tasks(config, tokenizer, config.max_reply_tokens)
    return {
        name: DemoTask(
            task=tasks[name],
            planning_params=env_params(
                tasks[name].env,
                section.planning_params,
                path=f"games.{name}.planning_params",
                base=tasks[name].params,
            ),
            facts=_facts(config, tasks[name].env),
            episodes=section.episodes,
            num_demonstrations=section.num_demonstrations,
            noise=section.noise,
        )
        for name, section in config.games.items()
    }


def build_tasks(
    config: ConfigDict, tokenizer: Tokenizer, max_reply_tokens: int
) -> dict[str, Task]:
    """The tasks of `config.games` with replies of at most `max_reply_tokens`."""
    return {
        name: make_task(
            _env_spec(name, section, config),
            tokenizer,
            EpisodeLimits(_budget(section), max_reply_tokens),
            prompt=config.prompt,
            context=section.context,
            context_turns=section.context_turns,
            picture_kind=kind,
        )
        for kind, (name, section) in enumerate(config.games.items())
    }


def dialogue_texts(config: ConfigDict) -> list[str]:
    """All strings that messages and demonstrated replies are made of."""
    texts, prompt = [], config.prompt
    for name, section in config.games.items():
        env, _ = make_env(_env_spec(name, section, config))
        budget = _budget(section)
        prompts = build_prompts(
            show_boards(env, prompt.observation, 0),
            style=prompt.style,
            budget=budget,
            length_hint_words=prompt.length_hint_words,
            thinking=prompt.thinking,
        )
        facts = _facts(config, env)
        replies = reply_template(env, budget, facts, thinking=prompt.thinking)
        for template in (prompts.opening, prompts.following, replies):
            texts += template.texts
        if section.host is not None:
            texts += common_words(sample_texts(env), COMMON_SHARE)
    return texts


def _env_spec(name: str, section: ConfigDict, config: ConfigDict) -> EnvSpec:
    host_game = section.host
    # In validation a failed game counts as lost. A failed demonstration is an error.
    host = host_game and config.host.to_dict() | {"max_failed_fraction": 1.0}
    return EnvSpec(
        host_game or section.name,
        num_groups=section.episodes,
        kwargs=section.kwargs,
        params=section.params,
        path=f"games.{name}",
        host=host,
    )


def _budget(section: ConfigDict) -> PlayBudget:
    return PlayBudget(
        section.max_turns,
        section.max_actions_per_turn,
        section.max_actions_per_episode,
    )


def _facts(config: ConfigDict, env: TextGame) -> StateFacts:
    thoughts = {spec.thought for spec in config.demonstrators.values()}
    if thoughts <= {THOUGHTS[NONE]}:
        return NO_FACTS
    facts = env.facts()
    return with_predictions(facts) if THOUGHTS[PREDICTING] in thoughts else facts


def build_mixtures(
    demonstrators: Mapping[str, Mapping[str, Any]], *, redraw: float
) -> tuple[Mixture, Mixture]:
    """The mixture of the first part of the steps and that of the rest.

    Args:
      demonstrators: name -> `thought`, `noise`, `share`, `first_share`.
      redraw: see `Mixture`.
    """

    def mixture(share: str) -> Mixture:
        specs = demonstrators.values()
        return Mixture(
            shares=jnp.array([spec[share] for spec in specs], jnp.float32),
            thoughts=jnp.array([THOUGHTS.index(spec["thought"]) for spec in specs]),
            noise=jnp.array([spec["noise"] for spec in specs], jnp.float32),
            redraw=jnp.float32(redraw),
        )

    return mixture("first_share"), mixture("share")


def build_data_sets(
    tasks: Mapping[str, DemoTask],
    mixture: Mixture,
    root: Key[Array, ""],
    model: ModelConfig | None = None,
) -> dict[str, DataSet]:
    """Episodes of a mixture's demonstrators, for every host game.

    `model`: the network that sees the games' images.
    """
    data_sets = {}
    for index, (name, demo) in enumerate(tasks.items()):
        if demo.task.env.lists_actions:
            continue
        numbers = jnp.arange(demo.num_demonstrations, dtype=jnp.int32)
        draw = Draw(data_set_key(root, index), numbers, jnp.ones(numbers.shape, bool))
        rollout = play_demonstrations(
            demo.task, _with_noise(mixture, demo), _episode_keys(draw), model
        )
        rows = jax.tree.map(
            lambda x, size=numbers.size: x.reshape(size, -1, *x.shape[1:]),
            _rows(rollout, draw.mask),
        )
        success, images = jnp.asarray(rollout.success), rollout.images
        data_sets[name] = DataSet(rows, success, images)
    return data_sets


def data_set_key(root: Key[Array, ""], index: int) -> Key[Array, ""]:
    """Root of the random keys of a task's data set."""
    return jax.random.fold_in(rngs.stream(root, "demonstration"), index)


def make_demonstrate(
    tasks: Mapping[str, DemoTask], *, tokenization: str, discount: float
) -> Callable[..., tuple[Batch, dict[str, Float[Array, ""]]]]:
    """Build `demonstrate(draws, mixture, dialogues, data) -> (batch, success by task)`.

    The function is pure and not jitted. It takes the tasks' dialogues and the data sets
    of host games as arguments, because a compiled program would hold a copy of them.
    Rows are in the order of `tasks`: one per episode, or one per turn if the player
    does not see the whole dialogue. Those outside a draw's mask have length 0.
    """

    replies = {
        name: compile_replies(
            demo.task.env,
            demo.task.tokenizer,
            demo.facts,
            demo.task.rules.budget,
            tokenization=tokenization,
            thinking=demo.task.dialogue.thinking,
        )
        for name, demo in tasks.items()
        if demo.task.env.lists_actions
    }

    def demonstrate(
        draws: Mapping[str, Draw],
        mixture: Mixture,
        dialogues: Mapping[str, Dialogue],
        data: Mapping[str, DataSet],
    ):
        played = {
            name: _take(data[name], draws[name])
            if name in data
            else _play(
                demo, draws[name], mixture, dialogues[name], replies[name], discount
            )
            for name, demo in tasks.items()
        }
        batches = [batch for batch, _ in played.values()]
        width = max(batch.tokens.shape[1] for batch in batches)
        # Of each game by its number.
        shown = [x.images for x in data.values() if x.images is not None]
        batch = Batch(
            tokens=_stack([batch.tokens for batch in batches], width),
            lengths=jnp.concatenate([batch.lengths for batch in batches]),
            loss_mask=_stack([batch.loss_mask for batch in batches], width),
            images=functools.reduce(operator.or_, shown) if shown else None,
        )
        success = {
            name: jnp.mean(wins, where=draws[name].mask)
            for name, (_, wins) in played.items()
        }
        return batch, success

    return demonstrate


def _play(
    demo: DemoTask,
    draw: Draw,
    mixture: Mixture,
    dialogue: Dialogue,
    replies: DeviceTemplate,
    discount: float,
) -> tuple[Batch, Bool[Array, " E"]]:
    """The episodes of a draw on the device, and which of them succeeded."""
    task = demo.task
    responder = build_responder(
        task.env,
        demo.planning_params,
        replies,
        _with_noise(mixture, demo),
        facts=demo.facts,
        rules=task.rules,
        discount=discount,
    )
    rollout = play_episodes(
        task.env,
        task.params,
        dialogue,
        responder,
        _episode_keys(draw),
        rules=task.rules,
    )
    return _rows(rollout, draw.mask), rollout.success


def _with_noise(mixture: Mixture, demo: DemoTask) -> Mixture:
    if demo.noise is None:
        return mixture
    return mixture.replace(noise=jnp.full_like(mixture.noise, demo.noise))


def _take(data: DataSet, draw: Draw) -> tuple[Batch, Bool[Array, " E"]]:
    chosen = jax.tree.map(lambda x: x[draw.numbers], data.rows)
    num_rows = chosen.lengths.shape[1]
    rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), chosen)
    mask = jnp.repeat(draw.mask, num_rows)
    batch = rows.replace(
        lengths=jnp.where(mask, rows.lengths, 0),
        loss_mask=rows.loss_mask & mask[:, None],
    )
    return batch, data.success[draw.numbers]


def _rows(rollout: Trajectory, mask: Bool[Array, " E"]) -> Batch:
    """What a player read and wrote: the dialogue, or its windows."""
    seen = rollout if rollout.windows is None else rollout.windows
    is_read = mask if rollout.windows is None else mask[:, None]
    return Batch(
        tokens=row_tokens(rollout),
        lengths=jnp.where(is_read, seen.lengths, 0).reshape(-1),
        loss_mask=to_rows(rollout.loss_mask & mask[:, None], rollout),
    )


def _episode_keys(draw: Draw) -> RolloutKeys:
    """Keys of episodes by number, derived as `rollout_keys` derives those of rows."""
    fold = jax.vmap(jax.random.fold_in, (None, 0))
    level, noise, sample = (
        fold(rngs.stream(draw.key, name), draw.numbers)
        for name in ("level", "noise", "sample")
    )
    return RolloutKeys(level, noise, sample, jnp.zeros(level.shape, bool))


def _stack(blocks: list[Array], width: int) -> Array:
    return jnp.concatenate(
        [jnp.pad(block, ((0, 0), (0, width - block.shape[1]))) for block in blocks]
    )
