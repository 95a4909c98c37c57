"""Scores of a fine-tuned model: success per task, with and without a thought.

In: parameters, the policy and the tasks. Out: plain numbers. The policy plays the
validation prompts of training, through the same rollout.
"""

from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ragen_jax.devices.sharding import make_mesh
from ragen_jax.evaluation.evaluate import level_facts
from ragen_jax.evaluation.statistics import summarize
from ragen_jax.models.policy import Policy
from ragen_jax.rollout.keys import validation_keys
from ragen_jax.tasks.task import Task
from ragen_jax.types import Params, Trajectory

# Tokens decoded between two checks; like `decode_chunk_tokens` it affects only speed.
CHUNK_TOKENS = 8


def make_score(
    policy: Policy,
    tasks: Mapping[str, Task],
    *,
    num_prompts: int,
    temperature: float,
    seed: int,
) -> Callable[[Params], dict[str, dict[str, float]]]:
    """Build `score(params) -> scores by task`, on `num_prompts` levels of each task.

    The levels are those of `launch.evaluate` with the same settings.
    """
    keys = validation_keys(seed, num_prompts)
    collects = {
        name: task.make_collect(
            policy,
            mesh=make_mesh(data=1, fsdp=1, tensor=1),
            num_groups=num_prompts,
            group_size=1,
            temperature=temperature,
            decode_chunk_tokens=CHUNK_TOKENS,
        )
        for name, task in tasks.items()
    }

    def score(params: Params) -> dict[str, dict[str, float]]:
        scores = {}
        for name, task in tasks.items():
            trajectory = collects[name](params, task.dialogue, keys)
            success = np.asarray(trajectory.success)[:, None]
            ceiling = task.ceiling(trajectory.initial_state)
            values = summarize(success, ceiling, ()) | thought_scores(task, trajectory)
            values |= level_facts(task.env, has_ceiling="ceiling" in values)
            scores[name] = {key: float(value) for key, value in values.items()}
        return scores

    return score


def thought_scores(task: Task, trajectory: Trajectory) -> dict[str, Float[Array, ""]]:
    """Shares of the episodes with a thought, and their success (NaN if there are none).

    Returns:
      `thinking`: episodes whose first reply contains a thought; `success_thinking` and
      `success_not_thinking`; `bad_format`: share of the turns without tags or without a
      valid action; `actions_per_turn`.
    """
    turns, success = trajectory.turns, trajectory.success
    first = jnp.take_along_axis(trajectory.tokens, turns.reply_start[:, :1], axis=1)
    # This token ends a thought. If it comes first, the thought is empty.
    end_of_thought = task.tokenizer.encode("</think>")[0]
    thinks = task.dialogue.thinking & (first[:, 0] != end_of_thought)
    is_bad = ~turns.has_format | (turns.num_valid == 0)
    num_turns = jnp.sum(turns.played)
    return {
        "thinking": jnp.mean(thinks),
        "success_thinking": jnp.sum(success & thinks) / jnp.sum(thinks),
        "success_not_thinking": jnp.sum(success & ~thinks) / jnp.sum(~thinks),
        "bad_format": jnp.sum(is_bad & turns.played) / num_turns,
        "actions_per_turn": jnp.sum(turns.num_executed) / num_turns,
    }
