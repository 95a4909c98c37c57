"""Games of a run: an environment, its dialogue, its rollouts and its ceiling.

In: a validated configuration and one entry of what is to be played. Out: a `Game`, and
the functions that play it. Knows no training.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

import envs
from envs.base import EnvParams, PlayBudget, TextEnvironment
from ragen_jax.bonuses import Bonus, build_bonus
from ragen_jax.config import play_budget
from ragen_jax.mix import Entry
from ragen_jax.models.policy import Policy
from ragen_jax.models.qwen2 import Qwen2Config
from ragen_jax.readings import landmarks_of
from ragen_jax.rollout.device import make_collect
from ragen_jax.text.dialogue import Dialogue, build_dialogue
from ragen_jax.text.facts import FactReader, build_fact_reader
from ragen_jax.text.tokenizer import Tokenizer
from ragen_jax.types import EnvState


@dataclasses.dataclass(frozen=True)
class Game:
    """An environment and the dialogue it is played in.

    Attributes:
      name: what metrics call it.
      env, params: the environment and its parameters.
      budget: how much play an episode allows.
      tokenizer, dialogue: how states become tokens and replies become actions.
      bonus: what a turn earns by how its reply is written; None: nothing.
    """

    name: str
    env: TextEnvironment
    params: EnvParams
    budget: PlayBudget
    tokenizer: Tokenizer
    dialogue: Dialogue
    bonus: Bonus | None


def build_game(config: ConfigDict, entry: Entry, tokenizer: Tokenizer) -> Game:
    """An environment and its dialogue under the checkpoint's tokenizer."""
    env = envs.make(entry.name, **constructor_arguments(entry))
    budget = play_budget(config)
    dialogue = build_dialogue(
        env,
        tokenizer,
        budget=budget,
        max_reply_tokens=config.rollout.max_reply_tokens,
        context=config.rollout.context,
        context_turns=config.rollout.context_turns,
        **config.prompt,
    )
    if config.bonus.facts is not None:
        dialogue = dialogue.replace(facts=build_facts(env, tokenizer))
    params = env_params(env, entry.params, path=entry.path)
    return Game(
        name=entry.label or env.name,
        env=env,
        params=params,
        budget=budget,
        tokenizer=tokenizer,
        dialogue=dialogue,
        bonus=build_bonus(env, params, **config.bonus),
    )


def constructor_arguments(entry: Entry) -> dict[str, object]:
    """An entry's `kwargs` as constructors take them: JSON knows no tuples."""
    return {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in entry.kwargs.items()
    }


def build_facts(env: TextEnvironment, tokenizer: Tokenizer) -> FactReader:
    """What reads where thoughts place the landmarks of a game.

    Raises:
      ValueError: the game has none.
    """
    names = [(env.symbols[one.symbol], one.words) for one in landmarks_of(env)]
    return build_fact_reader(tokenizer, names)


def env_params(
    env: TextEnvironment, changes: Mapping[str, object], *, path: str
) -> EnvParams:
    """The environment's default parameters with some values changed.

    Args:
      env: the environment.
      changes: by the parameter's name.
      path: where they stand in the configuration.

    Raises:
      ValueError: the environment has no parameter of that name.
    """
    defaults = env.default_params
    known = [field.name for field in dataclasses.fields(defaults)]
    for name in changes:
        if name not in known:
            raise ValueError(
                f"{path}.params.{name}: {env.name} has no such parameter; it has "
                f"{', '.join(known)}"
            )
    return defaults.replace(**changes)


def collector(
    config: ConfigDict,
    game: Game,
    policy: Policy,
    mesh: Mesh,
    *,
    num_groups: int,
    group_size: int,
    **own,
) -> Callable:
    """Rollouts as the configuration has them; `own` replaces settings of sampling."""
    layout = ("num_groups", "group_size", *vars(game.budget))
    layout += ("context", "context_turns")
    settings = {k: v for k, v in config.rollout.items() if k not in layout}
    return make_collect(
        game.env,
        game.params,
        policy,
        mesh=mesh,
        num_groups=num_groups,
        group_size=group_size,
        budget=game.budget,
        bonus=game.bonus,
        **settings | own,
    )


class Playable(Protocol):
    """A game as far as its solver is concerned."""

    env: TextEnvironment
    params: EnvParams
    budget: PlayBudget


def make_ceiling(game: Playable) -> Callable[[EnvState], float]:
    """Best possible success on levels, by the exact solver.

    The answer to the last question is kept: validation always asks about the same
    levels, and solving them may take as long as playing them.
    """
    solved: dict[bytes, float] = {}

    def ceiling(states: EnvState) -> float:
        leaves = jax.tree.leaves(jax.device_get(states))
        levels = b"".join(np.asarray(leaf).tobytes() for leaf in leaves)
        if levels not in solved:
            solution = game.env.solve(
                states, game.params, budget=game.budget, discount=1.0
            )
            solved.clear()
            solved[levels] = float(np.mean(jax.device_get(solution.best_success)))
        return solved[levels]

    return ceiling


def check_names(games: Sequence[Game]) -> None:
    """Refuse games that metrics could not tell apart."""
    names = [game.name for game in games]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"env.mix plays two games called {name!r}; give one a label of its "
                "own, e.g. ('sokoban', 4, {'label': 'Second'})"
            )


def check_fit(config: ConfigDict, game: Game, model: Qwen2Config) -> None:
    """Refuse what does not fit the model."""
    needed = game.dialogue.max_window_tokens
    if needed > model.max_position_embeddings:
        raise ValueError(
            f"the model may have to see {needed} tokens at once, but it reads "
            f"{model.max_position_embeddings}; lower rollout.max_turns or "
            "rollout.max_reply_tokens, or let it see a window (rollout.context)"
        )
    check_vocabulary(config.model.path, game.tokenizer, model)


def check_vocabulary(path: str, tokenizer: Tokenizer, model: Qwen2Config) -> None:
    """Refuse a tokenizer whose ids the model does not have.

    Raises:
      ValueError: so it is; `path` is where both came from.
    """
    if tokenizer.vocab_size > model.vocab_size:
        raise ValueError(
            f"the tokenizer in {path} has {tokenizer.vocab_size} ids, the model only "
            f"{model.vocab_size}; they do not belong together"
        )
