"""How a warm-started model plays: success per game, with and without a thought.

In: parameters and the games of the warm start. Out: plain numbers. The policy plays
fixed held-out levels itself, through the same rollout as in training.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ragen_jax import rngs
from ragen_jax.models.policy import Policy
from ragen_jax.rollout.collect import make_collect, rollout_keys
from ragen_jax.rollout.turns import PlayRules
from ragen_jax.sft.data import Game
from ragen_jax.sharding import make_mesh
from ragen_jax.text.dialogue import Dialogue
from ragen_jax.text.tokenizer import Tokenizer
from ragen_jax.types import Params, Trajectory

# Tokens decoded between two checks; a speed setting, as `decode_chunk_tokens`.
CHUNK_TOKENS = 8


def make_score(
    policy: Policy,
    games: Mapping[str, Game],
    dialogues: Mapping[str, Dialogue],
    tokenizer: Tokenizer,
    *,
    max_reply_tokens: int,
    num_prompts: int,
    temperature: float,
    seed: int,
) -> Callable[[Params], dict[str, dict[str, float]]]:
    """Builds `score(params) -> scores by game`, on `num_prompts` levels of each.

    The levels are those of the game's training configuration with the same evaluation
    settings. The dialogues are built for replies of `max_reply_tokens`.
    """
    key = rngs.stream(rngs.root_key(seed), "evaluation")
    empty_thought = tokenizer.encode("</think>")[0]
    collects = {
        name: make_collect(
            game.env,
            game.env_params,
            policy,
            mesh=make_mesh(data=1, fsdp=1, tensor=1),
            num_groups=num_prompts,
            group_size=1,
            rules=PlayRules(game.budget, max_reply_tokens),
            temperature=temperature or None,
            top_k=None,
            top_p=None,
            decode_chunk_tokens=CHUNK_TOKENS,
        )
        for name, game in games.items()
    }

    def score(params: Params) -> dict[str, dict[str, float]]:
        scores = {}
        for name, collect in collects.items():
            keys = rollout_keys(key, num_prompts, 1)
            trajectory = collect(params, dialogues[name], keys)
            scored = thought_scores(
                trajectory, empty_thought, thinking=dialogues[name].thinking
            )
            values = jax.device_get(scored)
            scores[name] = {key: float(value) for key, value in values.items()}
        return scores

    return score


def thought_scores(
    trajectory: Trajectory, empty_thought: int, *, thinking: bool
) -> dict[str, Float[Array, ""]]:
    """Shares of the rows (NaN where there are none).

    `success`; `thinking`: rows whose first reply holds a thought; `success_thinking`
    and `success_not_thinking`; `bad_format`: share of the turns without tags or
    without a valid action; `actions_per_turn`.

    Args:
      trajectory: played by the policy.
      empty_thought: token that ends a thought at once.
      thinking: the dialogue asks for thoughts.
    """
    turns, success = trajectory.turns, trajectory.success
    first = jnp.take_along_axis(trajectory.tokens, turns.reply_start[:, :1], axis=1)
    thinks = thinking & (first[:, 0] != empty_thought)
    is_bad = ~turns.has_format | (turns.num_valid == 0)
    num_turns = jnp.sum(turns.played)
    return {
        "success": jnp.mean(success),
        "thinking": jnp.mean(thinks),
        "success_thinking": jnp.sum(success & thinks) / jnp.sum(thinks),
        "success_not_thinking": jnp.sum(success & ~thinks) / jnp.sum(~thinks),
        "bad_format": jnp.sum(is_bad & turns.played) / num_turns,
        "actions_per_turn": jnp.sum(turns.num_executed) / num_turns,
    }
