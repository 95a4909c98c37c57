"""Rules between the keys of supervised fine-tuning, and their check.

In: the ConfigDict of `configs/pocket.py` or `configs/sft.py`. Out: nothing, or one
`ValueError` that names the key, its value, the rule and the cure. `configs/pocket.py`
declares the keys. Rules that need a game, a model or a tokenizer are checked where
those are built, before anything is written.
"""

import re
from collections.abc import Container, Iterable, Iterator

from ml_collections import ConfigDict

from ragen_jax.config import is_agent
from ragen_jax.registry.functions import load_reference
from ragen_jax.registry.settings import Leaves, Settings, check, flatten

_SECTIONS = (
    "prompt",
    "model",
    "games",
    "host",
    "demonstrators",
    "mixture",
    "optimizer",
    "train",
    "evaluation",
)


def declared(config: ConfigDict) -> Settings:
    """The declarations of a configuration's keys, its games' and players' included.

    Raises:
      ValueError: it is not a configuration of fine-tuning.
    """
    _check_there(config, _SECTIONS)

    def load(name: str) -> Settings:
        # By reference, see `ragen_jax/config.py`.
        return load_reference(f"configs.pocket:{name}")

    settings = load("SETTINGS")
    settings = settings | load(
        "LOADED_MODEL" if "path" in config.model else "NEW_MODEL"
    )
    for section, entry in {"games": "GAME", "demonstrators": "DEMONSTRATOR"}.items():
        for name in config[section]:
            settings = settings | load(entry).under(f"{section}.{name}")
    return settings


def validate(config: ConfigDict) -> None:
    """Check every key and every pair of keys that depend on each other.

    Raises:
      ValueError: the first rule that is broken, and the cure.
    """
    leaves, settings = flatten(config), declared(config)
    _check_there(leaves, settings.keys_of_values)
    is_new = "path" not in config.model
    check(leaves, settings, checks=(*_CHECKS, *([_heads] if is_new else ())))


def num_steps(config: ConfigDict) -> int:
    """Optimizer steps of a valid configuration."""
    return _num_steps(flatten(config))


def _check_there(present: Container[str], names: Iterable[str]) -> None:
    missing = [name for name in names if name not in present]
    if missing:
        raise ValueError(
            f"this is not a configuration of launch.sft, it lacks {missing[0]}; use "
            "configs/pocket.py or configs/sft.py (task files such as "
            "configs/sokoban.py are for launch.train)"
        )


def _games(leaves: Leaves) -> tuple[str, ...]:
    suffix = ".episodes"
    keys = [k for k in leaves if k.startswith("games.") and k.endswith(suffix)]
    return tuple(key.removesuffix(suffix) for key in keys)


def _num_steps(leaves: Leaves) -> int:
    """With `train.num_epochs` as many as the slowest game takes."""
    if leaves["train.num_steps"] is not None:
        return leaves["train.num_steps"]
    num_epochs = leaves["train.num_epochs"]
    return max(
        -(
            -num_epochs
            * leaves[f"{game}.num_demonstrations"]
            // leaves[f"{game}.episodes"]
        )
        for game in _games(leaves)
    )


def _length(leaves: Leaves) -> Iterator[str]:
    num_steps, num_epochs = leaves["train.num_steps"], leaves["train.num_epochs"]
    if (num_steps is None) == (num_epochs is None):
        yield (
            f"train.num_steps = {num_steps} and train.num_epochs = {num_epochs}; give "
            "one of them and set the other to None"
        )
    for game in _games(leaves):
        if num_epochs is not None and leaves[f"{game}.num_demonstrations"] is None:
            yield (
                f"train.num_epochs = {num_epochs}, but {game} has no data set to "
                f"repeat; set {game}.num_demonstrations, or train.num_steps in place "
                "of train.num_epochs"
            )


def _microbatches(leaves: Leaves) -> Iterator[str]:
    size = leaves["train.microbatch_episodes"]
    num_rows = sum(
        leaves[f"{game}.episodes"]
        * (1 if leaves[f"{game}.context"] == "full" else leaves[f"{game}.max_turns"])
        for game in _games(leaves)
    )
    if not num_rows or num_rows % size:
        yield (
            f"{num_rows} episodes per step (the games' together; where a player does "
            "not see the whole dialogue, its turns) cannot be split into microbatches "
            f"of train.microbatch_episodes = {size}; change either"
        )


def _warmup(leaves: Leaves) -> Iterator[str]:
    warmup, total = leaves["optimizer.warmup_steps"], _num_steps(leaves)
    if warmup >= total:
        yield (
            f"optimizer.warmup_steps = {warmup}; it must be below the number of steps, "
            f"{total} (train.num_steps, or the steps of train.num_epochs)"
        )


def _shares(leaves: Leaves) -> Iterator[str]:
    for key in ("first_share", "share"):
        is_share = re.compile(rf"demonstrators\.\w+\.{key}").fullmatch
        total = sum(value for path, value in leaves.items() if is_share(path))
        if abs(total - 1) > 1e-6:
            yield f"the demonstrators' {key} sum to {total:g}; make it 1"


def _data_sets(leaves: Leaves) -> Iterator[str]:
    for game in _games(leaves):
        episodes, size = (
            leaves[f"{game}.episodes"],
            leaves[f"{game}.num_demonstrations"],
        )
        if size is not None and size < episodes:
            yield (
                f"{game}.episodes = {episodes} is more than its num_demonstrations = "
                f"{size}; lower episodes or raise that"
            )


def _heads(leaves: Leaves) -> Iterator[str]:
    width, num_heads = leaves["model.hidden_size"], leaves["model.num_attention_heads"]
    if width % num_heads:
        yield (
            f"model.hidden_size = {width} is not a multiple of "
            f"model.num_attention_heads = {num_heads}; change one of them"
        )


def _worlds(leaves: Leaves) -> Iterator[str]:
    for game in _games(leaves):
        host = leaves[f"{game}.host"]
        if host is None:
            continue
        if leaves[f"{game}.num_demonstrations"] is None:
            yield (
                f"{game}.num_demonstrations = None, but {host} is a host game: its "
                "episodes are played before the first step; say how many, such as 1000"
            )
        if leaves[f"{game}.max_actions_per_turn"] != 1:
            yield (
                f"{game}.max_actions_per_turn = "
                f"{leaves[f'{game}.max_actions_per_turn']}, but {host} is a host game "
                "and gets whole answers: set it to 1"
            )
        noises = [
            key for key in leaves if re.fullmatch(r"demonstrators\.\w+\.noise", key)
        ]
        for key in (*noises, f"{game}.noise"):
            if is_agent(host) and leaves[key]:
                yield (
                    f"{key} = {leaves[key]}, but {host} is demonstrated by its expert, "
                    "which makes its own mistakes: set it to 0"
                )
        for key in leaves:
            if key.startswith(f"{game}.planning_params."):
                yield f"{key} has no effect: {host} plans by its own solution"


_CHECKS = (_length, _microbatches, _warmup, _shares, _data_sets, _worlds)
