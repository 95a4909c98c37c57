"""Lessons: the games of the warm start, and batches of demonstrated episodes.

In: game settings and a mixture of demonstrators. Out: token batches with the replies
marked, made on the device, and the tokenizer that the games' words ask for. Knows no
model and no loss.
"""

import dataclasses
import pathlib
import tempfile
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

import envs
from envs.base import NO_FACTS, EnvParams, PlayBudget, StateFacts, TextEnvironment
from ragen_jax import rngs
from ragen_jax.rollout.collect import RolloutKeys, play_episodes
from ragen_jax.rollout.demonstrators import (
    NONE,
    THOUGHTS,
    Mixture,
    build_responder,
    reply_template,
)
from ragen_jax.rollout.turns import PlayRules
from ragen_jax.sft import pocket_tokenizer
from ragen_jax.text.dialogue import Dialogue, build_dialogue
from ragen_jax.text.prompts import build_prompts
from ragen_jax.text.tokenizer import Tokenizer, load_tokenizer


@dataclasses.dataclass(frozen=True)
class Game:
    """One game of the warm start.

    Attributes:
      env: what is played, with `env_params`.
      planning_params: what demonstrators believe while they plan a turn.
      budget: how much play an episode allows.
      episodes: per step.
      num_demonstrations: size of the data set they come from; None: always fresh ones.
      noise: in place of the demonstrators' own; None leaves theirs.
      facts: what the demonstrators' thoughts can state.
    """

    env: TextEnvironment
    env_params: EnvParams
    planning_params: EnvParams
    budget: PlayBudget
    episodes: int
    num_demonstrations: int | None
    noise: float | None
    facts: StateFacts


@struct.dataclass
class Draw:
    """Episodes of one game. Axis `E`: episodes of a step.

    Attributes:
      key: root of their random keys.
      numbers: which they are: the same key and number are the same episode.
      counts: False where the data set is used up: played, but not learned.
    """

    key: Key[Array, ""]
    numbers: Int[Array, " E"]
    counts: Bool[Array, " E"]


@struct.dataclass
class Batch:
    """Demonstrated episodes of all games.

    Attributes:
      tokens, lengths: whole dialogues, padded on the right.
      loss_mask: the token belongs to a reply.
    """

    tokens: Int[Array, "B T"]
    lengths: Int[Array, " B"]
    loss_mask: Bool[Array, "B T"]


def build_game(
    *,
    name: str,
    kwargs: Mapping[str, Any],
    episodes: int,
    num_demonstrations: int | None,
    max_turns: int,
    max_actions_per_turn: int,
    max_actions_per_episode: int,
    params: Mapping[str, Any],
    planning_params: Mapping[str, Any],
    noise: float | None,
    thoughts: Collection[str] = THOUGHTS,
) -> Game:
    """A game from one section of `games` in the configuration.

    Args:
      thoughts: the demonstrators' styles.
      others: the section's keys.

    Raises:
      ValueError: a name or value is unknown or out of range, or a thought is to name
        what cannot be read in this game.
    """
    env = envs.make(name, **kwargs)
    env_params = _replace(env.default_params, params, f"params of {name}")
    planning = _replace(env_params, planning_params, f"planning_params of {name}")
    if episodes < 1:
        raise ValueError(
            f"episodes = {episodes} of {name}; use at least 1 or leave the game out"
        )
    if num_demonstrations is not None and num_demonstrations < episodes:
        raise ValueError(
            f"a step takes {episodes} episodes of {name}, more than its "
            f"num_demonstrations = {num_demonstrations}; lower episodes or raise that"
        )
    _check_chance(f"noise of game {name}", 0.0 if noise is None else noise)
    names_things = set(thoughts) - {THOUGHTS[NONE]}
    return Game(
        env=env,
        env_params=env_params,
        planning_params=planning,
        budget=PlayBudget(max_turns, max_actions_per_turn, max_actions_per_episode),
        episodes=episodes,
        num_demonstrations=num_demonstrations,
        noise=noise,
        facts=env.facts() if names_things else NO_FACTS,
    )


def _replace(
    env_params: EnvParams, changes: Mapping[str, Any], section: str
) -> EnvParams:
    known = [field.name for field in dataclasses.fields(env_params)]
    for key in changes:
        if key not in known:
            raise ValueError(
                f"{section}: {key!r} is no parameter; there are {', '.join(known)}"
            )
    return env_params.replace(**changes)


def build_mixtures(
    demonstrators: Mapping[str, Mapping[str, Any]], *, redraw: float
) -> tuple[Mixture, Mixture]:
    """The mixture of the first part and that of the rest.

    Args:
      demonstrators: name -> `thought`, `noise`, `share`, `first_share`.
      redraw: see `Mixture`.

    Raises:
      ValueError: an unknown style of thought, a chance outside [0, 1], or shares that
        do not sum to 1.
    """
    for name, spec in demonstrators.items():
        if spec["thought"] not in THOUGHTS:
            raise ValueError(
                f"demonstrators.{name}.thought = {spec['thought']!r}; choose one of "
                f"{', '.join(THOUGHTS)}"
            )
        for key in ("noise", "share", "first_share"):
            _check_chance(f"demonstrators.{name}.{key}", spec[key])
    _check_chance("mixture.redraw", redraw)
    mixtures = []
    for key in ("first_share", "share"):
        shares = [spec[key] for spec in demonstrators.values()]
        if abs(sum(shares) - 1) > 1e-6:
            raise ValueError(
                f"the demonstrators' {key} sum to {sum(shares):g}; make it 1"
            )
        styles = [spec["thought"] for spec in demonstrators.values()]
        noise = [spec["noise"] for spec in demonstrators.values()]
        mixtures.append(
            Mixture(
                shares=jnp.array(shares, jnp.float32),
                thoughts=jnp.array([THOUGHTS.index(s) for s in styles]),
                noise=jnp.array(noise, jnp.float32),
                redraw=jnp.float32(redraw),
            )
        )
    return mixtures[0], mixtures[1]


def load_or_build_tokenizer(
    folder: pathlib.Path, games: Mapping[str, Game], prompt: Mapping[str, Any]
) -> Tokenizer:
    """The tokenizer in `folder`; made from the games' words when there is none.

    Nothing is written there: `keep_tokenizer` does that.

    Raises:
      ValueError: the folder holds something that is no tokenizer.
    """
    if _is_complete(folder):
        return load_tokenizer(folder)
    texts = []
    for game in games.values():
        prompts = build_prompts(
            game.env,
            style=prompt["style"],
            budget=game.budget,
            length_hint_words=prompt["length_hint_words"],
            thinking=prompt["thinking"],
        )
        replies = reply_template(
            game.env, game.budget, game.facts, thinking=prompt["thinking"]
        )
        for template in (prompts.opening, prompts.following, replies):
            texts += pocket_tokenizer.template_texts(template)
    with tempfile.TemporaryDirectory() as fresh:
        tokenizer = pocket_tokenizer.build_tokenizer(texts)
        pocket_tokenizer.save_tokenizer(tokenizer, fresh)
        return load_tokenizer(fresh)


def keep_tokenizer(tokenizer: Tokenizer, folder: pathlib.Path) -> None:
    """Write a tokenizer that was made to its folder, unless it came from there."""
    if not _is_complete(folder):
        pocket_tokenizer.save_tokenizer(tokenizer.backend, folder)


def _is_complete(folder: pathlib.Path) -> bool:
    """Whether a tokenizer is there; its settings are written last."""
    return (folder / pocket_tokenizer.SETTINGS_FILE).is_file()


def build_dialogues(
    games: Mapping[str, Game],
    tokenizer: Tokenizer,
    prompt: Mapping[str, Any],
    max_reply_tokens: int,
) -> dict[str, Dialogue]:
    """Every game's dialogue, as rollouts have it."""
    return {
        name: build_dialogue(
            game.env,
            tokenizer,
            budget=game.budget,
            max_reply_tokens=max_reply_tokens,
            **prompt,
        )
        for name, game in games.items()
    }


def make_demonstrate(
    games: Mapping[str, Game],
    tokenizer: Tokenizer,
    *,
    tokenization: str,
    max_reply_tokens: int,
    discount: float,
    thinking: bool = True,
) -> Callable[..., tuple[Batch, dict[str, Float[Array, ""]]]]:
    """Builds `demonstrate(draws, mixture, dialogues) -> (Batch, success by game)`.

    The function is pure and not jitted; rows are games in the order given. Episodes
    that do not count have length 0 and nothing to learn.
    """

    def play(name: str, draw: Draw, mixture: Mixture, dialogue: Dialogue):
        game = games[name]
        if game.noise is not None:
            mixture = mixture.replace(noise=jnp.full_like(mixture.noise, game.noise))
        responder = build_responder(
            game.env,
            game.planning_params,
            tokenizer,
            mixture,
            facts=game.facts,
            tokenization=tokenization,
            budget=game.budget,
            max_reply_tokens=max_reply_tokens,
            discount=discount,
            thinking=thinking,
        )
        return play_episodes(
            game.env,
            game.env_params,
            dialogue,
            responder,
            _episode_keys(draw),
            rules=PlayRules(game.budget, max_reply_tokens),
        )

    def demonstrate(
        draws: Mapping[str, Draw], mixture: Mixture, dialogues: Mapping[str, Dialogue]
    ):
        played = {
            name: play(name, draws[name], mixture, dialogues[name]) for name in games
        }
        width = max(t.tokens.shape[1] for t in played.values())
        counts = jnp.concatenate([draws[name].counts for name in games])
        lengths = jnp.concatenate([t.lengths for t in played.values()])
        loss_mask = _stack([t.loss_mask for t in played.values()], width)
        batch = Batch(
            tokens=_stack([t.tokens for t in played.values()], width),
            lengths=jnp.where(counts, lengths, 0),
            loss_mask=loss_mask & counts[:, None],
        )
        success = {
            name: jnp.mean(t.success, where=draws[name].counts)
            for name, t in played.items()
        }
        return batch, success

    return demonstrate


def _episode_keys(draw: Draw) -> RolloutKeys:
    """Keys of rows by their numbers, as `rollout_keys` has them from 0 on."""
    fold = jax.vmap(jax.random.fold_in, (None, 0))
    level, noise, sample = (
        fold(rngs.stream(draw.key, name), draw.numbers)
        for name in ("level", "noise", "sample")
    )
    return RolloutKeys(level, noise, sample)


def _stack(blocks: list[Array], width: int) -> Array:
    """Rows of all blocks, padded on the right."""
    return jnp.concatenate(
        [jnp.pad(block, ((0, 0), (0, width - block.shape[1]))) for block in blocks]
    )


def _check_chance(name: str, value: float) -> None:
    if not (np.isfinite(value) and 0 <= value <= 1):
        raise ValueError(f"{name} = {value}; it must lie between 0 and 1")
