"""Reads questions in MetaMathQA's format and deals texts to splits.

In: a JSON list, JSON lines or parquet file with `query` and `response`, of which the
truth is what stands after `The answer is: `, and if there `original_question`.
Out: the `Question`s of a split.
Source of the format: the data set meta-math/MetaMathQA.
"""

import dataclasses
import gzip
import hashlib
import importlib.util
import json
import logging
import pathlib

from ragen_jax.host_games.base import TRAINING, VALIDATION

ANSWER_MARK = "The answer is: "
# Share of texts that are for validation.
VALIDATION_SHARE = 0.1
INSTALL = "pip install 'ragen_jax[parquet]'"

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Question:
    """A question of a data file and its true answer."""

    query: str
    truth: str


def split_of(text: str) -> str:
    """The split a text is in, by its content alone; case and blanks do not matter."""
    content = " ".join(text.split()).lower()
    digest = hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    return VALIDATION if share < VALIDATION_SHARE else TRAINING


def read_questions(path: str, split: str) -> list[Question]:
    """The questions of a split, in the file's order.

    Paraphrases go where the question they were made from goes, so that none is in the
    other split. RAGEN validates on the questions that it trains on.

    Args:
      path: a .json, .jsonl or .parquet file; the former also packed, as .json.gz.
      split: "training" or "validation".

    Raises:
      ValueError: no such file, another kind of file, a row without `query` or
        `response`, or no question of the split with a truth.
      ImportError: a .parquet file without pyarrow.
    """
    questions, dropped = [], 0
    for number, row in enumerate(read_rows(path), 1):
        is_row = isinstance(row, dict)
        fields = [row.get("query"), row.get("response")] if is_row else [None]
        if not all(isinstance(field, str) for field in fields):
            raise ValueError(
                f"row {number} of {path} has no texts query and response; give a file "
                "in MetaMathQA's format."
            )
        query, response = fields
        if split_of(row.get("original_question") or query) != split:
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


def read_rows(path: str) -> list:
    """The rows of a .json, .jsonl or .parquet file; the former also packed by gzip.

    Raises:
      ValueError: no such file, another kind of file, or not a list of rows.
      ImportError: a .parquet file without pyarrow.
    """
    file = pathlib.Path(path)
    if not file.is_file():
        raise ValueError(f"path={path} is no file; give one, or None for own problems.")
    if file.suffix == ".parquet":
        if importlib.util.find_spec("pyarrow") is None:
            raise ImportError(
                f"{path} needs pyarrow, which is not installed; run {INSTALL} or give "
                "a .json or .jsonl file."
            )
        import pyarrow.parquet

        return pyarrow.parquet.read_table(file).to_pylist()
    is_packed = file.suffix == ".gz"
    suffix = file.with_suffix("").suffix if is_packed else file.suffix
    if suffix not in (".json", ".jsonl"):
        raise ValueError(
            f"path={path} ends in {file.suffix!r}; allowed are .json, .jsonl, "
            ".parquet and, packed by gzip, .json.gz and .jsonl.gz."
        )
    data = file.read_bytes()
    text = (gzip.decompress(data) if is_packed else data).decode()
    try:
        if suffix == ".json":
            rows = json.loads(text)
        else:
            rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not {suffix[1:].upper()}: {error}") from error
    if not isinstance(rows, list):
        raise ValueError(f"{path} holds no list; give a list of rows or JSON lines.")
    return rows
