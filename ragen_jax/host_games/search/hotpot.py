"""HotpotQA: questions and paragraphs from its published files.

In: the path of a JSON or parquet file. Out: the questions of each split, and as
passages the paragraphs of all questions of the file.

A row has an id (`_id` in JSON, `id` in parquet), `question`, `answer`,
`supporting_facts` (titles and numbers of sentences) and `context` (titles and lists of
sentences); the pairs are lists of pairs in JSON, a pair of lists in parquet.

Source: Yang et al., "HotpotQA" (arXiv 1809.09600), CC BY-SA 4.0; hotpotqa.github.io and
the dataset hotpotqa/hotpot_qa.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ragen_jax.host_games.base import SPLITS
from ragen_jax.host_games.search.passages import (
    Hop,
    Passage,
    Question,
    one_line,
    stable_hash,
)

# One question in ten is held out.
VALIDATION_SHARE = 10
FORM = (
    "a list of objects with _id, question, answer, supporting_facts and context, as "
    "HotpotQA's hotpot_train_v1.1.json"
)


@dataclasses.dataclass(frozen=True)
class HotpotFile:
    """What a file holds.

    Attributes:
      passages: paragraphs of all questions, each once.
      by_split: questions of each split.
      path: of the file.
    """

    passages: tuple[Passage, ...]
    by_split: Mapping[str, tuple[Question, ...]]
    path: str

    def questions(self, split: str) -> tuple[Question, ...]:
        """Questions of a split.

        Raises:
          ValueError: there are none.
        """
        found = self.by_split[split]
        if not found:
            raise ValueError(
                f"no question of {self.path} falls into the {split} split; "
                "use a file with more questions"
            )
        return found


@functools.lru_cache(maxsize=2)
def load_hotpot(path: str, max_questions: int | None = None) -> HotpotFile:
    """Read a file; once per process, whatever happens to it afterwards.

    A question belongs to a split by the hash of its id. A question asked again in the
    same words is left out, so that no question is in both splits.

    Args:
      path: of a `.json` file, or of a `.parquet` file.
      max_questions: only the first ones are kept; None: all.

    Raises:
      ImportError: pyarrow is not installed, for parquet.
      ValueError: the file is not there or not in HotpotQA's form.
    """
    if max_questions is not None and max_questions < 1:
        raise ValueError(f"max_questions is {max_questions}; use at least 1, or None")
    passages: dict[str, Passage] = {}
    by_split: dict[str, list[Question]] = {split: [] for split in SPLITS}
    asked = set()
    for number, row in enumerate(_read_rows(path)[:max_questions]):
        try:
            question = _read_question(row, passages)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"question {number} of {path} is not as HotpotQA's: "
                f"{type(error).__name__}: {error}; the file must be {FORM}"
            ) from error
        if question.text not in asked:
            asked.add(question.text)
            by_split[split_of(question.id)].append(question)
    return HotpotFile(
        passages=tuple(passages.values()),
        by_split={split: tuple(found) for split, found in by_split.items()},
        path=path,
    )


def split_of(question_id: str) -> str:
    """The split that a question belongs to."""
    held_out = stable_hash("hotpot", question_id) % VALIDATION_SHARE == 0
    training, validation = SPLITS
    return validation if held_out else training


def _read_rows(path: str) -> Sequence[Any]:
    file = pathlib.Path(path)
    if not file.is_file():
        raise ValueError(f"data is {path!r}, which is no file; give a file of HotpotQA")
    if file.suffix == ".parquet":
        return _read_parquet(path)
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); it must be {FORM}") from error
    if not isinstance(rows, list):
        raise ValueError(f"{path} holds a {type(rows).__name__}; it must be {FORM}")
    return rows


def _read_parquet(path: str) -> Sequence[Any]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            f"reading {path} needs the package pyarrow, which is not installed; "
            "run: pip install 'ragen_jax[parquet]', or give the data as JSON"
        ) from error
    return pyarrow.parquet.read_table(path).to_pylist()


def _read_question(row: Mapping[str, Any], passages: dict[str, Passage]) -> Question:
    """A row as a question; its paragraphs are added to `passages`, by id."""
    name = row["_id"] if "_id" in row else row["id"]
    question, answer = row["question"], row["answer"]
    for field, value in (("id", name), ("question", question), ("answer", answer)):
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"its {field} is {value!r}, not a text")
    own_ids = {}
    for title, sentences in _pairs(row["context"], "title", "sentences"):
        text = "".join(sentences).strip()
        own_ids[title] = _add_passage(passages, title, text)
    facts = _pairs(row["supporting_facts"], "title", "sent_id")
    # In order of appearance, each title once.
    titles = dict.fromkeys(title for title, _ in facts)
    hops = tuple(Hop(title, own_ids[title]) for title in titles if title in own_ids)
    return Question(id=name, text=one_line(question), answer=answer.strip(), hops=hops)


def _pairs(field: Any, first: str, second: str) -> Iterable[tuple[Any, Any]]:
    """Pairs from a list of pairs, or from an object with a list for each side."""
    if isinstance(field, Mapping):
        return zip(field[first], field[second], strict=True)
    return ((left, right) for left, right in field)


def _add_passage(passages: dict[str, Passage], title: str, text: str) -> str:
    """The id of a paragraph, which is added unless it is there.

    Paragraphs of one title may differ between questions; all are kept.
    """
    name = f"{title} {stable_hash('passage', title, text):016x}"
    passages.setdefault(name, Passage(id=name, text=text, title=title))
    return name
