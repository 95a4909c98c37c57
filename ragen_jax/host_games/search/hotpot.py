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
from collections.abc import Iterable, Mapping
from typing import Any

from ragen_jax.host_games.base import SPLITS
from ragen_jax.host_games.common.bm25 import Passage
from ragen_jax.host_games.common.files import one_line, read_each, read_rows
from ragen_jax.host_games.common.options import check_whole
from ragen_jax.host_games.common.splits import split_of_hash, stable_hash
from ragen_jax.host_games.search.questions import Hop, Question

# One question in ten is for validation.
VALIDATION_ONE_IN = 10
FORM = (
    "the file must be a list of objects with _id, question, answer, supporting_facts "
    "and context, as HotpotQA's hotpot_train_v1.1.json"
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
          ValueError: the split has no questions.
        """
        questions = self.by_split[split]
        if not questions:
            raise ValueError(
                f"no question of {self.path} falls into the {split} split; "
                "use a file with more questions"
            )
        return questions


@functools.lru_cache(maxsize=2)
def load_hotpot(path: str, max_questions: int | None = None) -> HotpotFile:
    """Reads a file, cached per process; later changes are not seen.

    A question belongs to a split by the hash of its id. A question asked again in the
    same words is left out, so that no question is in both splits.

    Args:
      path: of a `.json` file, or of a `.parquet` file.
      max_questions: only the first ones are kept; None: all.

    Raises:
      ImportError: pyarrow is not installed, for parquet.
      ValueError: the file is not there or not in HotpotQA's form.
    """
    if max_questions is not None:
        check_whole("max_questions", max_questions)
    passages: dict[str, Passage] = {}
    by_split: dict[str, list[Question]] = {split: [] for split in SPLITS}
    asked = set()
    rows = read_rows(path, "data")[:max_questions]
    read = functools.partial(_read_question, passages=passages)
    for question in read_each(rows, read, path, form=FORM):
        if question.text not in asked:
            asked.add(question.text)
            by_split[split_of(question.id)].append(question)
    return HotpotFile(
        passages=tuple(passages.values()),
        by_split={split: tuple(questions) for split, questions in by_split.items()},
        path=path,
    )


def split_of(question_id: str) -> str:
    """The split that a question belongs to."""
    return split_of_hash(stable_hash("hotpot", question_id), VALIDATION_ONE_IN)


def _read_question(row: Mapping[str, Any], passages: dict[str, Passage]) -> Question:
    name = row["_id"] if "_id" in row else row["id"]
    question, answer = row["question"], row["answer"]
    for field, value in (("id", name), ("question", question), ("answer", answer)):
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"its {field} is {value!r}, not a text")
    facts = _pairs(row["supporting_facts"], "title", "sent_id")
    # In order of appearance, each title once.
    titles = dict.fromkeys(title for title, _ in facts)
    context = _pairs(row["context"], "title", "sentences")
    texts = [(title, "".join(sentences).strip()) for title, sentences in context]
    # Last: a row that cannot be read leaves no paragraphs.
    own_ids = {title: _add_passage(passages, title, text) for title, text in texts}
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
