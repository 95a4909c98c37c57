"""Episodes for people to read: one JSON-able record per row of a trajectory.

In: a trajectory and the tokenizer. Out: text, numbers and flags, on the host. What is
shown is decoded from the recorded ids, so it is what the model read and wrote.
"""

from typing import Any

import jax
import numpy as np

from ragen_jax.text.tokenizer import Tokenizer
from ragen_jax.types import Trajectory, Turns


def episodes(
    trajectory: Trajectory, tokenizer: Tokenizer, count: int | None = None
) -> list[dict[str, Any]]:
    """Records of the first `count` rows (None: all), whole groups first.

    Each holds `row`, `success`, `terminated`, `truncated`, `return` (rewards),
    `penalty` (format penalties), `bonus` (see `ragen_jax.bonuses`), `tokens`
    (in all), `sampled_tokens` and `turns`, a list with `observation` and `reply` (texts
    with their markup), `actions` (the environment's numbers, as executed), `reward`,
    `penalty`, `bonus`, `actions_left` (before the turn), `listed`, `valid` and
    `effective` (counts), `has_format`, `is_cut`, `reply_tokens` and `log_prob` (of the
    whole reply). Where the model did not see the
    whole dialogue a turn also has `window`, what it read before its reply.
    """
    rows = slice(0, count)
    shown = jax.device_get(
        jax.tree.map(lambda x: x[rows], trajectory.replace(initial_state=None))
    )
    return [_episode(shown, row, tokenizer) for row in range(len(shown.lengths))]


def _episode(trajectory: Trajectory, row: int, tokenizer: Tokenizer) -> dict[str, Any]:
    one = jax.tree.map(lambda x: x[row], trajectory)
    played = np.flatnonzero(one.turns.played)
    return {
        "row": row,
        "success": bool(one.success),
        "terminated": bool(one.terminated),
        "truncated": bool(one.truncated),
        "return": float(np.sum(one.turns.reward)),
        "penalty": float(np.sum(one.turns.penalty)),
        "bonus": float(np.sum(one.turns.bonus)),
        "tokens": int(one.lengths),
        "sampled_tokens": int(np.sum(one.loss_mask)),
        "turns": [_turn(one, int(turn), tokenizer) for turn in played],
    }


def _turn(one: Trajectory, turn: int, tokenizer: Tokenizer) -> dict[str, Any]:
    record: Turns = jax.tree.map(lambda x: x[turn], one.turns)
    message = (one.turn_index == turn) & ~one.loss_mask
    reply = slice(record.reply_start, record.reply_start + record.reply_length)
    seen = {}
    if one.windows is not None:
        prompt = one.windows.tokens[turn, : one.windows.reply_start[turn]]
        seen["window"] = tokenizer.decode(prompt)
    return {
        "turn": turn + 1,
        "observation": tokenizer.decode(one.tokens[message]),
        **seen,
        "reply": tokenizer.decode(one.tokens[reply]),
        "actions": record.actions[: record.num_executed].tolist(),
        "reward": float(record.reward),
        "penalty": float(record.penalty),
        "bonus": float(record.bonus),
        "actions_left": int(record.actions_left),
        "listed": int(record.num_listed),
        "valid": int(record.num_valid),
        "effective": int(record.num_effective),
        "has_format": bool(record.has_format),
        "is_cut": bool(record.reply_is_cut),
        "reply_tokens": int(record.reply_length),
        "log_prob": float(np.sum(one.sample_log_probs[reply])),
    }
