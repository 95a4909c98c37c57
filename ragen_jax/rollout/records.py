"""Episodes for people to read: one JSON-able record per row of a trajectory.

In: a trajectory, the prompts it was played with and the tokenizer. Out: text, numbers
and flags, on the host. What is shown is decoded from the recorded ids, so it is what
the model read and wrote.
"""

from typing import Any

import jax
import numpy as np

from envs.templates import Grid
from ragen_jax.text.prompts import Prompts
from ragen_jax.text.tokenizer import Tokenizer
from ragen_jax.types import Trajectory, Turns

# Decimals of a token's log-probability: enough to colour it, and short.
_LOG_PROB_DECIMALS = 3


def episodes(
    trajectory: Trajectory,
    tokenizer: Tokenizer,
    prompts: Prompts,
    count: int | None = None,
) -> list[dict[str, Any]]:
    """Records of the first `count` rows (None: all), whole groups first.

    Each holds `row`, `success`, `terminated`, `truncated`, `return` (rewards),
    `penalty` (format penalties), `bonus` (see `ragen_jax.rollout.bonuses`), `tokens`
    (in all), `sampled_tokens` and `turns`, a list with `observation` and `reply` (texts
    with their markup), `actions` (the environment's numbers, as executed), `reward`,
    `penalty`, `bonus`, `actions_left` (before the turn), `listed`, `valid` and
    `effective` (counts), `has_format`, `is_cut`, `reply_tokens`, `log_prob` (of the
    whole reply), `token_texts` and `token_log_probs` (of each of its tokens, see
    `Tokenizer.spell`). Where the model did not see the whole dialogue a turn also has
    `window`, what it read before its reply. Where the game shows a board a turn has it
    as `board`, rows of symbols, and the episode has its `legend`, symbol to meaning.
    """
    rows = slice(0, count)
    shown = jax.device_get(
        jax.tree.map(lambda x: x[rows], trajectory.replace(initial_state=None))
    )
    legend = legend_of(prompts)
    label = {"legend": legend} if legend else {}
    return [
        _episode(shown, row, tokenizer, prompts) | label
        for row in range(len(shown.lengths))
    ]


def legend_of(prompts: Prompts) -> dict[str, str]:
    """What the symbols of the boards mean; empty where nobody says."""
    grids = [part for part in prompts.opening.parts if isinstance(part, Grid)]
    # A grid may say nothing of its symbols.
    pairs = (zip(g.symbols, g.meanings, strict=False) for g in grids)
    return {symbol: meaning for pair in pairs for symbol, meaning in pair}


def _episode(
    trajectory: Trajectory, row: int, tokenizer: Tokenizer, prompts: Prompts
) -> dict[str, Any]:
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
        "turns": [_turn(one, int(turn), tokenizer, prompts) for turn in played],
    }


def _turn(
    one: Trajectory, turn: int, tokenizer: Tokenizer, prompts: Prompts
) -> dict[str, Any]:
    record: Turns = jax.tree.map(lambda x: x[turn], one.turns)
    message = (one.turn_index == turn) & ~one.loss_mask
    observation = tokenizer.decode(one.tokens[message])
    reply = slice(record.reply_start, record.reply_start + record.reply_length)
    log_probs = one.sample_log_probs[reply].astype(np.float64)
    seen = {}
    if one.windows is not None:
        prompt = one.windows.tokens[turn, : one.windows.reply_start[turn]]
        seen["window"] = tokenizer.decode(prompt)
    seen |= board_of(prompts, turn, observation)
    return {
        "turn": turn + 1,
        "observation": observation,
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
        "token_texts": tokenizer.spell(one.tokens[reply]),
        "token_log_probs": np.round(log_probs, _LOG_PROB_DECIMALS).tolist(),
    }


def board_of(prompts: Prompts, turn: int, observation: str) -> dict[str, Any]:
    """`board` as the message of a turn (from 0) shows it; nothing where it has none."""
    template = prompts.opening if turn == 0 else prompts.following
    boards = template.read_boards(observation)
    return {"board": _rows(boards[0])} if boards else {}


def _rows(board: list[list[str]]) -> list[str] | list[list[str]]:
    """Each row as one string, where every symbol is one character."""
    if all(len(symbol) == 1 for row in board for symbol in row):
        return ["".join(row) for row in board]
    return board
