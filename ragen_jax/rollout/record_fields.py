"""The record of an episode, one JSON line: its fields, declared once.

`rollout.records` writes it; `runs.reader`, `report.episodes` and the journal of an
evaluation over an API read it, each of them naming the fields it needs. Fields that a
reader does not know may hold anything; runs of earlier versions lack some.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

# Whole numbers are int64 in the event file.
LARGEST_INTEGER = 2**63 - 1
# Null where they are not finite.
REWARDS = ("return", "reward", "penalty", "bonus")


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a record.

    Attributes:
      kind: name in `KINDS`.
      meaning: what it says, with its unit.
      null: what null says; None: it is never null.
    """

    kind: str
    meaning: str
    null: str | None = None


_NOT_FINITE, _UNKNOWN = "not finite", "the API does not say"
_BONUS = "see `ragen_jax.rollout.bonuses`"
EPISODE = {
    "row": Field("count", "of the batch, or of the prompts"),
    "success": Field("flag", "the game was won"),
    "terminated": Field("flag", "the game ended by itself"),
    "truncated": Field("flag", "a limit ended the episode"),
    "return": Field("number", "sum of the rewards", _NOT_FINITE),
    "penalty": Field("number", "sum of the format penalties", _NOT_FINITE),
    "bonus": Field("number", f"sum; {_BONUS}", _NOT_FINITE),
    "tokens": Field("count", "in all", _UNKNOWN),
    "sampled_tokens": Field("count", "of them, the model's own", _UNKNOWN),
    "turns": Field("turns", "in order"),
    "legend": Field("legend", "symbol of the board to meaning; of games with one"),
    "environment": Field("text", "name of the game; of an evaluation, or of several"),
    # Of training: what the update made of the episode.
    "group": Field("count", "number of the group that played one level"),
    "kept": Field("flag", "the filter kept the group"),
    # Of models behind an API.
    "prompt_tokens": Field("count", "tokens that were read", _UNKNOWN),
    "cached_tokens": Field("count", "of them, from the API's cache", _UNKNOWN),
    "settings": Field("object", "of the conversation"),
}
TURN = {
    "turn": Field("count", "from 1"),
    "observation": Field("text", "message, with its markup"),
    "window": Field("text", "what the model read, if not the whole dialogue"),
    "segment": Field(
        "count", "of an agent: its dialogue that the call extends, from 1"
    ),
    "board": Field("board", "rows of symbols; of games with one"),
    "reply": Field("text", "with its markup"),
    "actions": Field("numbers", "the environment's, as executed"),
    "reward": Field("number", "of all actions", _NOT_FINITE),
    "penalty": Field("number", "for the format", _NOT_FINITE),
    "bonus": Field("number", _BONUS, _NOT_FINITE),
    "actions_left": Field("count", "of the episode, before the turn"),
    "listed": Field("count", "actions that the reply lists"),
    "valid": Field("count", "of them, names of actions"),
    "effective": Field("count", "executed actions that changed the game"),
    "has_format": Field("flag", "the reply has the format"),
    "is_cut": Field("flag", "the limit on tokens ended the reply"),
    "reply_tokens": Field("count", "sampled", _UNKNOWN),
    "log_prob": Field("number", "natural logarithm", f"{_UNKNOWN}, or {_NOT_FINITE}"),
    "token_texts": Field("texts", "of each sampled token, see `Tokenizer.spell`"),
    "token_log_probs": Field("or_nulls", f"of each token; null: {_NOT_FINITE}"),
    "boards_after": Field("boards", "the board after each executed action"),
    "advantage": Field("number", "mean over the tokens; of kept groups", _NOT_FINITE),
    "finish_reason": Field("text", "the API's"),
    "prompt_tokens": Field("count", "tokens that were read", _UNKNOWN),
    "cached_tokens": Field("count", "of them, from the API's cache", _UNKNOWN),
}


def wrong_field(
    values: Any,
    fields: Mapping[str, Field],
    *,
    needed: Collection[str] = (),
    filled: Collection[str] = (),
) -> str | None:
    """What is wrong with an episode or a turn of a file; None: nothing.

    Args:
      values: read from JSON.
      fields: `EPISODE` or `TURN`.
      needed: fields that must be there, null where they may be.
      filled: those that must be there and not be null.
    """
    if not isinstance(values, dict):
        return "not a JSON object"
    for name in (*needed, *filled):
        if name not in values or (name in filled and values[name] is None):
            return f"{name} is missing{' or null' * (name in filled)}"
    for name, field in fields.items():
        words, is_right = KINDS[field.kind]
        value = values.get(name)
        if value is None:
            if name in values and field.null is None:
                return f"{name} is null"
        elif not is_right(value):
            return f"{name} is not {words}"
    return None


def is_number(value: object) -> bool:
    """A finite number of a size that 64 bits hold; true and false are not."""
    if type(value) is int:
        return abs(value) <= LARGEST_INTEGER
    return type(value) is float and math.isfinite(value)


def _is_count(value: object) -> bool:
    return type(value) is int and is_number(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _list_of(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_right, value))


_are_texts = _list_of(_is_text)


def _is_board(board: object) -> bool:
    """Rows of one length, each a text or a list of texts."""
    if not isinstance(board, list) or not board:
        return False
    rows = [isinstance(row, str) or _are_texts(row) for row in board]
    return all(rows) and len(board[0]) > 0 and len({len(row) for row in board}) == 1


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


# Name -> in words, test.
KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "flag": ("true or false", lambda value: isinstance(value, bool)),
    "count": ("a whole number", _is_count),
    "number": ("a finite number", is_number),
    "text": ("a text", _is_text),
    "texts": ("a list of texts", _are_texts),
    "numbers": ("a list of finite numbers", _list_of(is_number)),
    "or_nulls": (
        "a list of finite numbers and nulls",
        _list_of(lambda value: value is None or is_number(value)),
    ),
    "board": ("rows of symbols of equal length", _is_board),
    "boards": ("a list of boards", _list_of(_is_board)),
    "legend": (
        "an object of texts",
        lambda value: _is_object(value) and all(map(_is_text, value.values())),
    ),
    "turns": ("a list", lambda value: isinstance(value, list)),
    "object": ("an object", _is_object),
}
