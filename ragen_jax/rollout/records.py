"""Episodes for people to read: one JSON-able record per row of a trajectory.

In: a trajectory with the prompts and the tokenizer of its rollout, or with the texts of
a chat. Out: text, numbers and flags, on the host. Texts of a rollout are decoded from
the recorded ids, so that they show exactly what the model read and wrote.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from envs.templates import Grid
from ragen_jax.rollout.host.calls import SEGMENTS
from ragen_jax.rollout.host.text import Chat, ChatTurn
from ragen_jax.text.messages import DialogueTurn, in_markup
from ragen_jax.text.prompts import Prompts, cut_messages
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

    `record_fields` says what the fields are. Those of single tokens stand in records of
    a rollout alone; `add_boards` adds what became of the board, `add_credit` what the
    update made of the episode.
    """
    rows = slice(0, count)
    # Rows are cut on the host: every field would compile its own cut.
    on_host = jax.device_get(trajectory.replace(initial_state=None))
    host_rows = jax.tree.map(lambda x: x[rows], on_host)
    legend = legend_of(prompts)
    label = {"legend": legend} if legend else {}
    return [
        _episode(host_rows, row, tokenizer, prompts) | label
        for row in range(len(host_rows.lengths))
    ]


def add_boards(
    records: Sequence[dict[str, Any]],
    boards: Int[np.ndarray, "B K A rows cols"],
    symbols: Sequence[str],
) -> None:
    """Add `boards_after` to every turn: the board after each of its executed actions.

    Args:
      records: of `episodes`, changed in place.
      boards: of `replay.make_boards_after`, for at least these rows.
      symbols: of its entries.
    """
    for record, of_row in zip(records, boards, strict=False):
        for turn in record["turns"]:
            after = of_row[turn["turn"] - 1, : len(turn["actions"])]
            turn["boards_after"] = [
                _rows([[symbols[i] for i in line] for line in board]) for board in after
            ]


def add_credit(
    records: Sequence[dict[str, Any]],
    kept: Bool[np.ndarray, " B"],
    advantages: Float[np.ndarray, "B K"],
    group_size: int,
) -> None:
    """Add `group` and `kept` to every episode, and `advantage` to its turns.

    An advantage is the mean over a turn's sampled tokens; turns of dropped episodes
    have none.

    Args:
      records: of `episodes`, changed in place.
      kept: the filter kept the episode.
      advantages: of its turns.
      group_size: adjacent rows that played the same level.
    """
    for record, is_kept, of_row in zip(records, kept, advantages, strict=True):
        record |= {"group": record["row"] // group_size, "kept": bool(is_kept)}
        if is_kept:
            for turn in record["turns"]:
                turn["advantage"] = round(float(of_row[turn["turn"] - 1]), 4)


def legend_of(prompts: Prompts) -> dict[str, str]:
    """Symbol to meaning of the boards; empty without a board or meanings."""
    grids = [part for part in prompts.opening.parts if isinstance(part, Grid)]
    # A grid may have no meanings.
    pairs = (zip(g.symbols, g.meanings, strict=False) for g in grids)
    return {symbol: meaning for pair in pairs for symbol, meaning in pair}


def chat_record(
    trajectory: Trajectory, turns: Sequence[ChatTurn], chat: Chat
) -> dict[str, Any]:
    """The record of an episode in chat messages, a trajectory of one row.

    It has the fields of `episodes` but those of single tokens, and what the API says.
    """
    episode = jax.tree.map(lambda x: x[0], jax.device_get(trajectory))
    prompts = cut_messages(chat.wording)
    records = [
        _chat_turn(episode, i, turn, turns[i - 1].shown if i else None, chat, prompts)
        for i, turn in enumerate(turns)
    ]
    last = turns[-1].reply
    legend = legend_of(prompts)
    return {
        **_outcome(episode),
        "tokens": _total([last.prompt_tokens, last.reply_tokens]),
        "sampled_tokens": _total([turn.reply.reply_tokens for turn in turns]),
        "prompt_tokens": _total([turn.reply.prompt_tokens for turn in turns]),
        "cached_tokens": _total([turn.reply.cached_tokens for turn in turns]),
        "turns": records,
        **({"legend": legend} if legend else {}),
    }


def _chat_turn(
    episode: Trajectory,
    number: int,
    turn: ChatTurn,
    before: DialogueTurn | None,
    chat: Chat,
    prompts: Prompts,
) -> dict[str, Any]:
    record: Turns = jax.tree.map(lambda x: x[number], episode.turns)
    if before is None:
        observation = prompts.opening.render(turn.shown.fields)
    else:
        observation = prompts.following.render(turn.shown.fields | before.result)
    window = {}
    if chat.context != "full":
        window["window"] = in_markup(
            turn.messages, chat.wording.reply_prefix, chat.wording.markup
        )
    reply, text = turn.reply, turn.shown.reply
    return {
        "turn": number + 1,
        "observation": observation,
        **window,
        **board_of(prompts, number, observation),
        "reply": text if reply.is_cut else text + chat.wording.markup.end,
        **_numbers(record),
        "reply_tokens": reply.reply_tokens,
        "log_prob": None,
        "finish_reason": reply.finish_reason,
        "prompt_tokens": reply.prompt_tokens,
        "cached_tokens": reply.cached_tokens,
    }


def _total(counts: Sequence[int | None]) -> int | None:
    return None if None in counts else sum(counts)


def _episode(
    trajectory: Trajectory, row: int, tokenizer: Tokenizer, prompts: Prompts
) -> dict[str, Any]:
    episode = jax.tree.map(lambda x: x[row], trajectory)
    played = np.flatnonzero(episode.turns.played)
    return {
        "row": row,
        **_outcome(episode),
        "tokens": int(episode.lengths),
        "sampled_tokens": int(np.sum(episode.turns.reply_length)),
        "turns": [_turn(episode, int(turn), tokenizer, prompts) for turn in played],
    }


def _outcome(episode: Trajectory) -> dict[str, Any]:
    return {
        "success": bool(episode.success),
        "terminated": bool(episode.terminated),
        "truncated": bool(episode.truncated),
        "return": float(np.sum(episode.turns.reward)),
        "penalty": float(np.sum(episode.turns.penalty)),
        "bonus": float(np.sum(episode.turns.bonus)),
    }


def _turn(
    episode: Trajectory, turn: int, tokenizer: Tokenizer, prompts: Prompts
) -> dict[str, Any]:
    record: Turns = jax.tree.map(lambda x: x[turn], episode.turns)
    reply = slice(record.reply_start, record.reply_start + record.reply_length)
    # Not by the loss mask: that of a game that failed is empty.
    is_message = episode.turn_index == turn
    is_message[reply] = False
    observation = tokenizer.decode(episode.tokens[is_message])
    log_probs = episode.sample_log_probs[reply].astype(np.float64)
    window, windows = {}, episode.windows
    if SEGMENTS in (episode.game_metrics or {}):
        # The observation of a segment's first turn is all that the model read.
        window["segment"] = 1 if windows is None else int(windows.of_turn[turn]) + 1
    elif windows is not None:
        seen = windows.tokens[windows.of_turn[turn]]
        prompt = seen[: windows.reply_start[turn]]
        window["window"] = tokenizer.decode(prompt)
    return {
        "turn": turn + 1,
        "observation": observation,
        **window,
        **board_of(prompts, turn, observation),
        "reply": tokenizer.decode(episode.tokens[reply]),
        **_numbers(record),
        "reply_tokens": int(record.reply_length),
        "log_prob": float(np.sum(episode.sample_log_probs[reply])),
        "token_texts": tokenizer.spell(episode.tokens[reply]),
        "token_log_probs": np.round(log_probs, _LOG_PROB_DECIMALS).tolist(),
    }


def _numbers(record: Turns) -> dict[str, Any]:
    return {
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
    }


def board_of(prompts: Prompts, turn: int, observation: str) -> dict[str, Any]:
    """The board in the message of a turn (from 0), as `board`; empty without one."""
    template = prompts.opening if turn == 0 else prompts.following
    boards = template.read_boards(observation)
    return {"board": _rows(boards[0])} if boards else {}


def _rows(board: list[list[str]]) -> list[str] | list[list[str]]:
    """Rows as strings if every symbol is one character, else as lists of symbols."""
    if all(len(symbol) == 1 for row in board for symbol in row):
        return ["".join(row) for row in board]
    return board
