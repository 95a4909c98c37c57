"""Theorems from a file in miniF2F's format.

In: a path. Out: the theorems of a split, each as the text before its first tactic.
Does not know whether Lean accepts them.

The file is JSONL, one theorem a line, with the fields under which miniF2F is published:
`name`, `formal_statement` (up to `:= by`; a `sorry` behind it is cut off), and where
they are given `header` (imports and what is opened), `informal_prefix` (the problem in
words, as a comment), and `split` (`valid` or `test`). Other fields, such as `goal`, are
not read. The copy that RAGEN uses says `imports` and `preamble` for `header` and
`natural_language_statement` for `informal_prefix`; both are read.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from ragen_jax.host_games.base import TRAINING, VALIDATION
from ragen_jax.host_games.common.files import read_lines
from ragen_jax.host_games.common.splits import check_split, split_of_hash, text_hash

# RAGEN's imports, but with a bound in Lean's own steps: it ends a script at the same
# place on any machine, which seconds do not.
DEFAULT_HEADER = (
    "import Mathlib\nimport Aesop\n\nset_option maxHeartbeats 400000\n\n"
    "open BigOperators Real Nat Topology Rat"
)
# What the field `split` may say, and what it means here.
_SPLITS = {
    "train": TRAINING,
    "valid": TRAINING,
    "validation": TRAINING,
    "test": VALIDATION,
}
# Where a file does not say, one theorem in five is for validation.
_VALIDATION_ONE_IN = 5

_END = re.compile(r"\s*(:=\s*(by\b\s*)?(sorry\s*)?)?$")
_NAMED = re.compile(r"^\s*((theorem|lemma)\s+[^\s:(){}\[\]]+|example)")


@dataclasses.dataclass(frozen=True)
class Theorem:
    """What is to be proved.

    Attributes:
      name: of the theorem.
      words: the problem in words; empty where the file has none.
      code: Lean's text up to and with `:= by`.
    """

    name: str
    words: str
    code: str


def load_theorems(path: str, split: str) -> tuple[Theorem, ...]:
    """The theorems of a split, in the order of the file.

    If the file marks theorems `test` and others, the first are for validation and the
    rest for training, without those whose statement is a test theorem's, too. If not,
    the statement decides: one in five is for validation.

    Args:
      path: of the file.
      split: `training` or `validation`.

    Raises:
      ValueError: the file cannot be read, a line is not a theorem, or the split has
        none.
    """
    check_split(split)
    rows = _read(path)
    marks = {row.get("split") for row in rows}
    is_marked = "test" in marks and len(marks) > 1
    held_out = {_claim(row) for row in rows if _split(row, is_marked) == VALIDATION}
    if split == VALIDATION:
        chosen = [row for row in rows if _split(row, is_marked) == VALIDATION]
    else:
        chosen = [row for row in rows if _claim(row) not in held_out]
    theorems = tuple(_theorem(row) for row in chosen)
    if not theorems:
        raise ValueError(
            f"{path} has no theorem for {split}; use a file with more theorems, or "
            "with `split` fields of both kinds."
        )
    return theorems


def _read(path: str) -> list[Mapping[str, Any]]:
    rows = read_lines(path, "data")
    for number, row in rows:
        statement = row.get("formal_statement") if isinstance(row, dict) else None
        if not isinstance(statement, str) or not statement.strip():
            raise ValueError(
                f"{path}, line {number}, has no text in `formal_statement`; every line "
                "is one theorem in miniF2F's format."
            )
        if row.get("split") not in (None, *_SPLITS):
            raise ValueError(
                f"{path}, line {number}: split is {row['split']!r}; use "
                f"{', '.join(_SPLITS)}, or leave it out."
            )
    return [row for _, row in rows]


def _claim(row: Mapping[str, Any]) -> str:
    """A statement without its name and its line breaks."""
    statement = _END.sub("", row["formal_statement"])
    return " ".join(_NAMED.sub("", statement).split())


def _split(row: Mapping[str, Any], is_marked: bool) -> str:
    if is_marked:
        return _SPLITS[row.get("split") or "train"]
    return split_of_hash(text_hash(_claim(row)), _VALIDATION_ONE_IN)


def _theorem(row: Mapping[str, Any]) -> Theorem:
    header = row.get("header")
    if header is None:
        parts = (row.get("imports") or DEFAULT_HEADER, row.get("preamble") or "")
        header = "\n\n".join(part.strip() for part in parts if part.strip())
    words = row.get("informal_prefix") or row.get("natural_language_statement") or ""
    words = words.strip().removeprefix("/--").removesuffix("-/").strip()
    statement = _END.sub("", row["formal_statement"].strip())
    code = f"{header.strip()}\n\n{statement} := by"
    return Theorem(str(row.get("name", "")), words, code.strip())
