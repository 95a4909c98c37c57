"""Size presets: the part of a configuration that depends on the model, not the task.

`--config=configs/sokoban.py:qwen2.5-0.5b` applies the entry of that name on top of the
task's own settings.
"""

from ml_collections import ConfigDict


def pocket(config: ConfigDict) -> None:
    """The built-in model of 0.8 million parameters, on a laptop.

    Four minibatches of 32 rows per iteration; about 10 seconds an iteration on 2 cores.
    """
    config.rollout.num_groups = 32
    config.rollout.group_size = 8
    config.filter.keep_fraction = 0.5
    config.optimizer.learning_rate = 2e-4
    config.train.num_iterations = 40
    config.evaluation.every = 10


def _qwen(config: ConfigDict, path: str) -> None:
    """The paper's setting (StarPO-S, arXiv 2504.20073, section 4) on a real model."""
    config.prompt.style = "full"
    config.prompt.tokenization = "rows"
    config.model.path = path
    config.model.dtype = "bfloat16"
    config.rollout.num_groups = 8
    config.rollout.group_size = 16
    config.rollout.max_turns = 5
    config.rollout.max_actions_per_turn = 5
    config.rollout.max_actions_per_episode = 10
    config.rollout.max_reply_tokens = 400
    config.rollout.temperature = 1.0
    config.filter.keep_fraction = 0.25
    config.optimizer.learning_rate = 1e-6
    config.learner.minibatch_rows = 32
    config.learner.microbatch_rows = 4
    config.train.num_iterations = 200
    config.evaluation.every = 10
    config.checkpoint.every = 20


def qwen_half_billion(config: ConfigDict) -> None:
    """Qwen2.5-0.5B-Instruct, the paper's model."""
    _qwen(config, "Qwen/Qwen2.5-0.5B-Instruct")


def qwen_one_and_a_half_billion(config: ConfigDict) -> None:
    """Qwen2.5-1.5B-Instruct."""
    _qwen(config, "Qwen/Qwen2.5-1.5B-Instruct")


def qwen_three_billion(config: ConfigDict) -> None:
    """Qwen2.5-3B-Instruct, RAGEN-2's model."""
    _qwen(config, "Qwen/Qwen2.5-3B-Instruct")


def apply_size(config: ConfigDict, name: str) -> None:
    """Apply a size preset in place.

    Raises:
      ValueError: no preset has this name; the message lists those that exist.
    """
    if name not in SIZES:
        raise ValueError(f"no preset {name!r}; presets are {', '.join(SIZES)}")
    SIZES[name](config)


SIZES = {
    "pocket": pocket,
    "qwen2.5-0.5b": qwen_half_billion,
    "qwen2.5-1.5b": qwen_one_and_a_half_billion,
    "qwen2.5-3b": qwen_three_billion,
}
