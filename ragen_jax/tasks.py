"""Tasks: an environment with its dialogue, its budget and its ceiling.

In: the `env` section of a validated configuration. Out: a specification per
environment, in the order of the batch's rows, and the games built from them. Without
`env.mix` there is one specification, `env.name`, that plays every group. Knows no
training.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

import envs
from envs.base import EnvParams, PlayBudget, TextEnvironment
from ragen_jax.models.config import ModelConfig
from ragen_jax.models.policy import Policy
from ragen_jax.rollout.bonuses import build_bonus
from ragen_jax.rollout.collect import make_collect
from ragen_jax.rollout.turns import Bonus
from ragen_jax.text.dialogue import Dialogue, build_dialogue
from ragen_jax.text.statements import FactReader, build_fact_reader, landmarks_of
from ragen_jax.text.tokenizer import Tokenizer
from ragen_jax.types import EnvState

_SETTINGS = ("kwargs", "params", "label")


# Labels become parts of metric names.
_LABEL = re.compile(r"[A-Za-z][\w-]*")


_FORM = (
    "an entry is (name, groups) or (name, groups, settings), e.g. ('sokoban', 4) or "
    "('sokoban', 4, {'kwargs': {'num_boxes': 2}, 'label': 'TwoBoxes'})"
)


@dataclasses.dataclass(frozen=True)
class Entry:
    """One environment of a run.

    Attributes:
      name: in the table of `envs/__init__.py`.
      num_groups: groups of a training batch that play it.
      kwargs: arguments of its constructor.
      params: values of its `EnvParams` that differ from its own defaults.
      label: what metrics call it. None: the environment's own name.
      path: where it stands in the configuration, for error messages.
    """

    name: str
    num_groups: int
    kwargs: Mapping[str, object]
    params: Mapping[str, object]
    label: str | None = None
    path: str = "env"


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


def thought_reader(game: Game) -> FactReader | None:
    """The reader of the facts in thoughts; None if there are none to read."""
    if not game.dialogue.thinking or not game.env.landmarks:
        return None
    return game.dialogue.facts or build_facts(game.env, game.tokenizer)


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


def check_fit(config: ConfigDict, game: Game, model: ModelConfig) -> None:
    """Refuse what does not fit the model."""
    needed = game.dialogue.max_window_tokens
    if needed > model.max_position_embeddings:
        raise ValueError(
            f"the model may have to see {needed} tokens at once, but it reads "
            f"{model.max_position_embeddings}; lower rollout.max_turns or "
            "rollout.max_reply_tokens, or let it see a window (rollout.context)"
        )
    check_vocabulary(config.model.path, game.tokenizer, model)


def check_vocabulary(path: str, tokenizer: Tokenizer, model: ModelConfig) -> None:
    """Refuse a tokenizer whose ids the model does not have.

    Raises:
      ValueError: so it is; `path` is where both came from.
    """
    if tokenizer.vocab_size > model.vocab_size:
        raise ValueError(
            f"the tokenizer in {path} has {tokenizer.vocab_size} ids, the model only "
            f"{model.vocab_size}; they do not belong together"
        )


def environments(config: ConfigDict) -> tuple[Entry, ...]:
    """The environments of a validated configuration, in the order of the rows."""
    env, num_groups = config.env, config.rollout.num_groups
    if env.mix is None:
        return (Entry(env.name, num_groups, env.kwargs, env.params),)
    return tuple(_read(i, entry) for i, entry in enumerate(env.mix))


def check_mix(leaves: Mapping[str, object]) -> None:
    """Rules of `env.mix`; whether an environment exists is seen when it is built.

    Args:
      leaves: all keys of the configuration by their dotted paths.

    Raises:
      ValueError: the first rule that is broken, and the cure.
    """
    mix = leaves["env.mix"]
    if mix is None:
        return
    if len(mix) < 2 or not all(isinstance(entry, tuple | list) for entry in mix):
        raise ValueError(
            f"env.mix = {mix!r}; it takes at least two entries, {_FORM}; a single "
            "environment is env.name, with env.kwargs and env.params"
        )
    entries = [_read(i, entry) for i, entry in enumerate(mix)]
    for key in leaves:
        if key.startswith(("env.kwargs.", "env.params.")):
            raise ValueError(
                f"{key} belongs to the single environment env.name, but env.mix plays "
                "several; give an entry its own: ('sokoban', 4, {'kwargs': {...}, "
                "'params': {...}})"
            )
    total, num_groups = sum(e.num_groups for e in entries), leaves["rollout.num_groups"]
    if total != num_groups:
        raise ValueError(
            f"env.mix has {total} groups in all, but rollout.num_groups = "
            f"{num_groups}; set --config.rollout.num_groups={total}, or change the "
            "entries"
        )
    shards = leaves["mesh.data"] * leaves["mesh.fsdp"]
    group_size = leaves["rollout.group_size"]
    for entry in entries:
        if entry.num_groups * group_size % shards:
            raise ValueError(
                f"{entry.path}: {entry.num_groups} groups x rollout.group_size = "
                f"{group_size} are {entry.num_groups * group_size} rows of "
                f"{entry.name!r}, which cannot be split over mesh.data x mesh.fsdp = "
                f"{shards} devices; use a multiple of {shards}"
            )


def _read(index: int, entry: object) -> Entry:
    """An entry of `env.mix`.

    Raises:
      ValueError: it has another form.
    """
    path = f"env.mix[{index}]"
    if not isinstance(entry, tuple | list) or len(entry) not in (2, 3):
        raise ValueError(f"{path} = {entry!r}; {_FORM}")
    name, num_groups, settings = (*entry, {})[:3]
    is_count = isinstance(num_groups, int) and not isinstance(num_groups, bool)
    if not isinstance(name, str) or not is_count or num_groups < 1:
        raise ValueError(
            f"{path} = {entry!r}; {_FORM}, with a whole number of groups, at least 1"
        )
    if not isinstance(settings, Mapping):
        raise ValueError(f"{path} has the settings {settings!r}, no dict; {_FORM}")
    for key, value in settings.items():
        if key not in _SETTINGS:
            raise ValueError(
                f"{path} has no setting {key!r}; settings are {', '.join(_SETTINGS)}"
            )
        if key != "label" and not isinstance(value, Mapping):
            raise ValueError(f"{path}: {key} = {value!r}; it must be a dict; {_FORM}")
    label = settings.get("label")
    if label is not None and not (isinstance(label, str) and _LABEL.fullmatch(label)):
        raise ValueError(
            f"{path}: label = {label!r}; it becomes part of metric names: use a letter "
            "and then letters, digits, '_' or '-'"
        )
    kwargs, params = settings.get("kwargs", {}), settings.get("params", {})
    return Entry(name, num_groups, kwargs, params, label, path)


def play_budget(config: ConfigDict) -> PlayBudget:
    """How much play the configuration allows an episode."""
    return PlayBudget(
        max_turns=config.rollout.max_turns,
        max_actions_per_turn=config.rollout.max_actions_per_turn,
        max_actions_per_episode=config.rollout.max_actions_per_episode,
    )
