"""Reads questions in MetaMathQA's format.

In: a JSON list, JSON lines or parquet file with `query` and `response`, of which the
truth is what stands after `The answer is: `, and if there `original_question`.
Out: the `Question`s of a split.
Source of the format: the data set meta-math/MetaMathQA.
"""

import dataclasses
import logging
from typing import Any

from ragen_jax.host_games.common.files import read_each, read_rows
from ragen_jax.host_games.common.splits import VALIDATION_SHARE, split_of

ANSWER_MARK = "The answer is: "

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Question:
    """A question of a data file and its true answer."""

    query: str
    truth: str


def read_questions(path: str, split: str) -> list[Question]:
    """The questions of a split, in the file's order.

    Paraphrases go where the question they were made from goes, so that none is in the
    other split. RAGEN validates on the questions that it trains on.

    Args:
      path: a .json, .jsonl or .parquet file; the former also packed, as .json.gz.
      split: "training" or "validation".

    Raises:
      ValueError: no such file, another kind of file, too many rows without `query` or
        `response`, or no question of the split with a truth.
      ImportError: a .parquet file without pyarrow.
    """
    questions, dropped = [], 0
    for query, response, original in read_each(
        read_rows(path), _read_row, path, form="give a file in MetaMathQA's format"
    ):
        if split_of(original) != split:
            continue
        truth = response.rpartition(ANSWER_MARK)[2].strip()
        if ANSWER_MARK in response and truth:
            questions.append(Question(query, truth))
        else:
            dropped += 1
    if dropped:
        _log.warning("%s: %d rows without an answer are left out", path, dropped)
    if not questions:
        raise ValueError(
            f"{path} has no question for {split} with an answer after "
            f"{ANSWER_MARK!r}; give more rows: about one original question in "
            f"{1 / VALIDATION_SHARE:.0f} is for validation."
        )
    return questions


def _read_row(row: dict[str, Any]) -> tuple[str, str, str]:
    """Query, response, and the question that the query was made from."""
    query, response = row["query"], row["response"]
    original = row.get("original_question") or query
    if not all(isinstance(text, str) for text in (query, response, original)):
        raise TypeError("query, response and original_question must be texts")
    return query, response, original
