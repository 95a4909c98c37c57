"""Checks a warm start's configuration before anything is built from it.

In: the ConfigDict of `configs/pocket.py`. Out: nothing, or one `ValueError` that names
the key, its value, the rule and the cure. What needs a game or the tokenizer to be
checked is checked where those are built, which is before anything is written, too.
"""

from collections.abc import Container, Iterable

from ml_collections import ConfigDict

from ragen_jax.config import CHOICES, RANGES, check_values, flatten

_SECTIONS = (
    "prompt",
    "model",
    "games",
    "demonstrators",
    "mixture",
    "optimizer",
    "train",
    "evaluation",
)

_POSITIVE_INTEGERS = (
    "prompt.length_hint_words",
    "max_reply_tokens",
    "model.hidden_size",
    "model.intermediate_size",
    "model.num_hidden_layers",
    "model.num_attention_heads",
    "model.num_key_value_heads",
    "model.max_position_embeddings",
    "train.num_steps",
    "train.microbatch_episodes",
    "train.log_every",
    "train.checkpoint_every",
    "evaluation.num_prompts",
)
_GAME_POSITIVE_INTEGERS = (
    "episodes",
    "max_turns",
    "max_actions_per_turn",
    "max_actions_per_episode",
)

_CHANCE = ("between 0 and 1", lambda x: 0 <= x <= 1)

_RANGES = {
    key: RANGES[key]
    for key in (
        "seed",
        "evaluation.seed",
        "evaluation.temperature",
        "optimizer.learning_rate",
        "optimizer.beta1",
        "optimizer.beta2",
        "optimizer.weight_decay",
        "optimizer.max_grad_norm",
    )
} | {
    "model.rope_theta": ("above 0", lambda x: x > 0),
    "model.initializer_range": ("above 0", lambda x: x > 0),
    "optimizer.warmup_steps": ("at least 0", lambda x: x >= 0),
    "optimizer.final_fraction": _CHANCE,
    "mixture.redraw": _CHANCE,
    "mixture.first_part": _CHANCE,
    "mixture.discount": ("above 0 and at most 1", lambda x: 0 < x <= 1),
}

_CHOICES = {key: CHOICES[key] for key in ("prompt.style", "prompt.tokenization")}


def validate_warm_start(config: ConfigDict) -> None:
    """Check every key and every pair of keys that depend on each other.

    Raises:
      ValueError: the first rule that is broken, and the cure.
    """
    _check_there(config, _SECTIONS)
    positive_integers = [*_POSITIVE_INTEGERS]
    for name in config.games:
        positive_integers += [f"games.{name}.{key}" for key in _GAME_POSITIVE_INTEGERS]
    leaves = flatten(config)
    _check_there(leaves, [*positive_integers, *_RANGES, *_CHOICES])
    check_values(
        leaves,
        optional=[f"games.{name}.noise" for name in config.games],
        positive_integers=positive_integers,
        ranges=_RANGES,
        choices=_CHOICES,
    )
    _check_pairs(config)


def _check_there(found: Container[str], names: Iterable[str]) -> None:
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(
            f"this is no configuration of a warm start, it lacks {missing[0]}; use "
            "configs/pocket.py (task files such as configs/sokoban.py are for "
            "launch.train)"
        )


def _check_pairs(config: ConfigDict) -> None:
    """Rules between keys."""
    train = config.train
    if config.optimizer.warmup_steps >= train.num_steps:
        raise ValueError(
            f"optimizer.warmup_steps = {config.optimizer.warmup_steps}; it must be "
            f"below train.num_steps = {train.num_steps}"
        )
    if config.model.hidden_size % config.model.num_attention_heads:
        raise ValueError(
            f"model.hidden_size = {config.model.hidden_size} is not a multiple of "
            f"model.num_attention_heads = {config.model.num_attention_heads}; change "
            "one of them"
        )
    num_episodes = sum(game.episodes for game in config.games.values())
    if not num_episodes or num_episodes % train.microbatch_episodes:
        raise ValueError(
            f"{num_episodes} episodes per step (the games' together) cannot be split "
            f"into microbatches of train.microbatch_episodes = "
            f"{train.microbatch_episodes}; change either"
        )
