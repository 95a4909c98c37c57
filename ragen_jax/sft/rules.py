"""Checks a warm start's configuration before anything is built from it.

In: the ConfigDict of `configs/pocket.py` or `configs/sft.py`. Out: nothing, or one
`ValueError` that names the key, its value, the rule and the cure. What needs a game, a
model or a tokenizer to be checked is checked where those are built, which is before
anything is written, too.
"""

from collections.abc import Container, Iterable

from ml_collections import ConfigDict

from ragen_jax.config import CHOICES, RANGES, check_values, flatten
from ragen_jax.rollout.demonstrators import THOUGHTS

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
    "train.num_steps",
    "train.num_epochs",
    "train.microbatch_episodes",
    "train.logprob_chunk_tokens",
    "train.log_every",
    "train.checkpoint_every",
    "evaluation.num_prompts",
    "evaluation.max_reply_tokens",
)
_OPTIONAL = ("train.num_steps", "train.num_epochs", "train.logprob_chunk_tokens")
_GAME_POSITIVE_INTEGERS = (
    "episodes",
    "num_demonstrations",
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
    "optimizer.warmup_steps": ("at least 0", lambda x: x >= 0),
    "optimizer.final_fraction": _CHANCE,
    "mixture.redraw": _CHANCE,
    "mixture.first_part": _CHANCE,
    "mixture.discount": ("above 0 and at most 1", lambda x: 0 < x <= 1),
}

_CHOICES = {key: CHOICES[key] for key in ("prompt.style", "prompt.tokenization")}

# Keys of a model that is made from nothing, and of one that is loaded.
_NEW_POSITIVE_INTEGERS = (
    "model.hidden_size",
    "model.intermediate_size",
    "model.num_hidden_layers",
    "model.num_attention_heads",
    "model.num_key_value_heads",
    "model.max_position_embeddings",
)
_NEW_RANGES = {
    "model.rope_theta": ("above 0", lambda x: x > 0),
    "model.initializer_range": ("above 0", lambda x: x > 0),
}
_LOADED_POSITIVE_INTEGERS = ("lora.rank",)
_LOADED_RANGES = {"lora.alpha": RANGES["lora.alpha"]}
_LOADED_CHOICES = {
    key: CHOICES[key] for key in ("model.dtype", "model.remat", "model.attention")
}


def validate_warm_start(config: ConfigDict) -> None:
    """Check every key and every pair of keys that depend on each other.

    Raises:
      ValueError: the first rule that is broken, and the cure.
    """
    _check_there(config, _SECTIONS)
    is_loaded = "path" in config.model
    positive_integers, optional = [*_POSITIVE_INTEGERS], [*_OPTIONAL]
    for name in config.games:
        positive_integers += [f"games.{name}.{key}" for key in _GAME_POSITIVE_INTEGERS]
        optional += [f"games.{name}.{key}" for key in ("num_demonstrations", "noise")]
    if is_loaded:
        positive_integers += _LOADED_POSITIVE_INTEGERS
        optional += ["lora.rank", "model.remat"]
        ranges, choices = _RANGES | _LOADED_RANGES, _CHOICES | _LOADED_CHOICES
    else:
        positive_integers += _NEW_POSITIVE_INTEGERS
        ranges, choices = _RANGES | _NEW_RANGES, _CHOICES
    ranges, choices = {**ranges}, {**choices}
    for name in config.games:
        ranges[f"games.{name}.noise"] = _CHANCE
    for name in config.demonstrators:
        for key in ("noise", "share", "first_share"):
            ranges[f"demonstrators.{name}.{key}"] = _CHANCE
        choices[f"demonstrators.{name}.thought"] = THOUGHTS
    leaves = flatten(config)
    _check_there(leaves, [*positive_integers, *ranges, *choices])
    check_values(
        leaves,
        optional=optional,
        positive_integers=positive_integers,
        ranges=ranges,
        choices=choices,
    )
    _check_length(config)
    _check_pairs(config)
    _check_demonstrations(config)
    if not is_loaded:
        _check_heads(config)


def num_steps(config: ConfigDict) -> int:
    """Optimizer steps of a valid configuration.

    With `train.num_epochs` as many as the game takes that takes longest.
    """
    if config.train.num_steps is not None:
        return config.train.num_steps
    return max(
        -(-config.train.num_epochs * game.num_demonstrations // game.episodes)
        for game in config.games.values()
    )


def _check_there(found: Container[str], names: Iterable[str]) -> None:
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(
            f"this is no configuration of a warm start, it lacks {missing[0]}; use "
            "configs/pocket.py or configs/sft.py (task files such as "
            "configs/sokoban.py are for launch.train)"
        )


def _check_length(config: ConfigDict) -> None:
    """Either steps or epochs, and epochs of something."""
    train = config.train
    if (train.num_steps is None) == (train.num_epochs is None):
        raise ValueError(
            f"train.num_steps = {train.num_steps} and train.num_epochs = "
            f"{train.num_epochs}; give one of them and set the other to None"
        )
    if train.num_epochs is None:
        return
    for name, game in config.games.items():
        if game.num_demonstrations is None:
            raise ValueError(
                f"train.num_epochs = {train.num_epochs}, but games.{name} has no data "
                f"set to repeat; set games.{name}.num_demonstrations, or train."
                "num_steps in place of train.num_epochs"
            )


def _check_pairs(config: ConfigDict) -> None:
    """Rules between keys."""
    microbatch = config.train.microbatch_episodes
    num_episodes = sum(game.episodes for game in config.games.values())
    if not num_episodes or num_episodes % microbatch:
        raise ValueError(
            f"{num_episodes} episodes per step (the games' together) cannot be split "
            f"into microbatches of train.microbatch_episodes = {microbatch}; change "
            "either"
        )
    if config.optimizer.warmup_steps >= num_steps(config):
        raise ValueError(
            f"optimizer.warmup_steps = {config.optimizer.warmup_steps}; it must be "
            f"below the number of steps, {num_steps(config)} (train.num_steps, or what "
            "train.num_epochs take)"
        )


def _check_demonstrations(config: ConfigDict) -> None:
    """Shares that sum to 1, data sets at least as large as a step."""
    for key in ("first_share", "share"):
        total = sum(spec[key] for spec in config.demonstrators.values())
        if abs(total - 1) > 1e-6:
            raise ValueError(f"the demonstrators' {key} sum to {total:g}; make it 1")
    for name, game in config.games.items():
        size = game.num_demonstrations
        if size is not None and size < game.episodes:
            raise ValueError(
                f"games.{name}.episodes = {game.episodes} is more than its "
                f"num_demonstrations = {size}; lower episodes or raise that"
            )


def _check_heads(config: ConfigDict) -> None:
    if config.model.hidden_size % config.model.num_attention_heads:
        raise ValueError(
            f"model.hidden_size = {config.model.hidden_size} is not a multiple of "
            f"model.num_attention_heads = {config.model.num_attention_heads}; change "
            "one of them"
        )
