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
from ragen_jax.host_games.common.files import read_each, read_lines
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
      ValueError: the file cannot be read, too many lines are not theorems, or the split
        has none.
    """
    check_split(split)
    lines = read_lines(path, "data")
    rows = read_each(
        [row for _, row in lines],
        _read,
        path,
        form="every line is one theorem in miniF2F's format",
        kind="line",
        names=[f"{path}, line {number}," for number, _ in lines],
    )
    marks = {row.mark for row in rows}
    is_marked = "test" in marks and len(marks) > 1
    held_out = {row.claim for row in rows if row.split(is_marked) == VALIDATION}
    if split == VALIDATION:
        chosen = [row for row in rows if row.split(is_marked) == VALIDATION]
    else:
        chosen = [row for row in rows if row.claim not in held_out]
    theorems = tuple(row.theorem for row in chosen)
    if not theorems:
        raise ValueError(
            f"{path} has no theorem for {split}; use a file with more theorems, or "
            "with `split` fields of both kinds."
        )
    return theorems


@dataclasses.dataclass(frozen=True)
class _Row:
    """A line of a file.

    Attributes:
      theorem: of the line.
      claim: its statement without its name and its line breaks.
      mark: what the line says of its split; None: nothing.
    """

    theorem: Theorem
    claim: str
    mark: str | None

    def split(self, is_marked: bool) -> str:
        """The split, if the file is marked, else that of the statement."""
        if is_marked:
            return _SPLITS[self.mark or "train"]
        return split_of_hash(text_hash(self.claim), _VALIDATION_ONE_IN)


def _read(row: Mapping[str, Any]) -> _Row:
    statement = row.get("formal_statement")
    if not isinstance(statement, str) or not statement.strip():
        raise ValueError("it has no text in `formal_statement`")
    mark = row.get("split")
    if mark not in (None, *_SPLITS):
        raise ValueError(
            f"split is {mark!r}; use {', '.join(_SPLITS)}, or leave it out"
        )
    claim = " ".join(_NAMED.sub("", _END.sub("", statement)).split())
    theorem = _theorem(row)
    # Half a surrogate pair cannot be sent to Lean.
    theorem.code.encode()
    return _Row(theorem, claim, mark)


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
