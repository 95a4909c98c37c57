"""Rules of the configuration of supervised fine-tuning.

In: the ConfigDict of `configs/pocket.py` or `configs/sft.py`. Out: nothing, or one
`ValueError` that names the key, its value, the rule and the cure. Rules that need a
game, a model or a tokenizer are checked where those are built, before anything is
written.
"""

import re
from collections.abc import Container, Iterable, Iterator

from ml_collections import ConfigDict

from ragen_jax import config as training
from ragen_jax.registry.settings import Leaves, Rules, check, flatten
from ragen_jax.rollout.demonstrators import THOUGHTS
from ragen_jax.text.context import CONTEXTS

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


def validate(config: ConfigDict) -> None:
    """Check every key and every pair of keys that depend on each other.

    Raises:
      ValueError: the first rule that is broken, and the cure.
    """
    _check_there(config, _SECTIONS)
    leaves = flatten(config)
    rules = RULES | (LOADED_RULES if "path" in config.model else NEW_RULES)
    for name in config.games:
        rules = rules | _game_rules(f"games.{name}")
    for name in config.demonstrators:
        rules = rules | _demonstrator_rules(f"demonstrators.{name}")
    _check_there(leaves, rules.keys)
    check(leaves, rules)


def num_steps(config: ConfigDict) -> int:
    """Optimizer steps of a valid configuration."""
    return _num_steps(flatten(config))


def _check_there(present: Container[str], names: Iterable[str]) -> None:
    missing = [name for name in names if name not in present]
    if missing:
        raise ValueError(
            f"this is no configuration of launch.sft, it lacks {missing[0]}; use "
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
        world = leaves[f"{game}.host"]
        if world is None:
            continue
        if leaves[f"{game}.num_demonstrations"] is None:
            yield (
                f"{game}.num_demonstrations = None, but {world} runs in Python: its "
                "episodes are played before the first step; say how many, such as 1000"
            )
        if leaves[f"{game}.max_actions_per_turn"] != 1:
            yield (
                f"{game}.max_actions_per_turn = "
                f"{leaves[f'{game}.max_actions_per_turn']}, but {world} runs in Python "
                "and gets whole answers: set it to 1"
            )
        for key in leaves:
            if key.startswith(f"{game}.planning_params."):
                yield f"{key} has no effect: {world} plans by its own solution"


_CHANCE = ("between 0 and 1", lambda x: 0 <= x <= 1)
_ABOVE_ZERO = ("above 0", lambda x: x > 0)

RULES = training.RULES.only(
    (
        "seed",
        "prompt.style",
        "prompt.tokenization",
        "prompt.length_hint_words",
        "optimizer.learning_rate",
        "optimizer.beta1",
        "optimizer.beta2",
        "optimizer.weight_decay",
        "optimizer.max_grad_norm",
        "evaluation.num_prompts",
        "evaluation.seed",
        "evaluation.temperature",
        "host.wrappers",
        "host.max_observation_tokens",
        "host.num_workers",
        "host.step_seconds",
        "host.max_worker_bytes",
    )
) | Rules(
    optional=("train.num_steps", "train.num_epochs", "train.logprob_chunk_tokens"),
    positive_integers=(
        "max_reply_tokens",
        "train.num_steps",
        "train.num_epochs",
        "train.microbatch_episodes",
        "train.logprob_chunk_tokens",
        "train.log_every",
        "train.checkpoint_every",
        "evaluation.max_reply_tokens",
    ),
    ranges={
        "optimizer.warmup_steps": ("at least 0", lambda x: x >= 0),
        "optimizer.final_fraction": _CHANCE,
        "train.prompt_loss_weight": _CHANCE,
        "mixture.redraw": _CHANCE,
        "mixture.first_part": _CHANCE,
        "mixture.discount": ("above 0 and at most 1", lambda x: 0 < x <= 1),
    },
    checks=(_length, _microbatches, _warmup, _shares, _data_sets, _worlds),
)

# A model that is loaded, with adapters or without.
LOADED_RULES = training.RULES.only(
    ("lora.rank", "lora.alpha", "model.dtype", "model.remat", "model.attention")
)

# A model that is made from nothing.
NEW_RULES = Rules(
    positive_integers=(
        "model.hidden_size",
        "model.intermediate_size",
        "model.num_hidden_layers",
        "model.num_attention_heads",
        "model.num_key_value_heads",
        "model.max_position_embeddings",
    ),
    ranges={"model.rope_theta": _ABOVE_ZERO, "model.initializer_range": _ABOVE_ZERO},
    checks=(_heads,),
)


def _game_rules(game: str) -> Rules:
    """Rules of one entry of `games`."""
    integers = ("episodes", "num_demonstrations", "max_turns")
    integers += ("max_actions_per_turn", "max_actions_per_episode", "context_turns")
    optional = ("host", "num_demonstrations", "noise", "context_turns")
    return Rules(
        optional=[f"{game}.{key}" for key in optional],
        positive_integers=[f"{game}.{key}" for key in integers],
        ranges={f"{game}.noise": _CHANCE},
        choices={f"{game}.context": CONTEXTS},
    )


def _demonstrator_rules(demonstrator: str) -> Rules:
    """Rules of one entry of `demonstrators`."""
    return Rules(
        ranges={
            f"{demonstrator}.{key}": _CHANCE
            for key in ("noise", "share", "first_share")
        },
        choices={f"{demonstrator}.thought": THOUGHTS},
    )
