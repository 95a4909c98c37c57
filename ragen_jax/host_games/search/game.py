"""SearchQA: answer questions with facts from a search engine.

In: replies, each a search or the answer. Out: passages found, and at the end the pay
of the answer. Questions come from an invented world (`invented`) or from HotpotQA
(`hotpot`), passages from an index in memory (`common.bm25`) or a server (`client`).

Source: RAGEN's SearchQA (ragen/env/search, after rLLM's). It differs where the original
harms: replies it cannot read are invalid instead of final answers (`loose` plays the
original's rule); only an exact match is a success, not any pay; the last reply is for
the answer, so that every search is of use; validation has other questions; a server
that fails raises instead of being read as a passage.
"""

import functools
from collections.abc import Sequence
from typing import Protocol

from ragen_jax.host_games.base import TRAINING, HostGame, Observation, Step
from ragen_jax.host_games.common.bm25 import (
    BM25Retriever,
    Passage,
    Retriever,
    refuse_without_bm25s,
)
from ragen_jax.host_games.common.files import one_line
from ragen_jax.host_games.common.options import (
    check_bool,
    check_one_of,
    check_task,
    check_whole,
    refuse_given,
)
from ragen_jax.host_games.common.splits import check_split
from ragen_jax.host_games.search.client import AUTO, HttpRetriever
from ragen_jax.host_games.search.hotpot import load_hotpot
from ragen_jax.host_games.search.invented import (
    BRIDGE,
    COMPARISON,
    FACT,
    build_questions,
    build_world,
)
from ragen_jax.host_games.search.questions import Question
from ragen_jax.host_games.search.scores import exact_match, f1_score, pay

SEARCH, FINISH = KEYWORDS = ("search", "finish")
# Kinds of questions of the invented world by the passages they need.
KINDS_OF_HOPS = {1: (FACT,), 2: (BRIDGE, COMPARISON)}
DEFAULT_NUM_HOPS = 2
# Below the default of `host.step_seconds`, so that an error says what happened.
DEFAULT_TIMEOUT_SECONDS = 8.0
# Longer replies are not read.
MAX_REPLY_CHARS = 2_000
# Passages may not be cut to less: a fact of the invented world has up to 24 characters.
FEWEST_PASSAGE_CHARS = 40

INSTRUCTION = (
    "Answer the question with a search engine. Reply with one of\n"
    "search[words] for up to {top_k} passages with these words\n"
    "finish[answer] to end, in words of a passage or with yes or no\n"
    "Searches at most: {max_searches}."
)


def read_reply(reply: str) -> tuple[str, str] | None:
    """The keyword of a reply and what is in its brackets; None if it is neither.

    Brackets inside have to be balanced, so that `search[a] finish[b]` is not one query.
    """
    text = reply.strip()
    keyword, _, rest = text.partition("[")
    keyword, content = keyword.strip().lower(), rest[:-1].strip()
    if len(text) > MAX_REPLY_CHARS or keyword not in KEYWORDS:
        return None
    if not rest.endswith("]") or not content or not _is_balanced(content):
        return None
    return keyword, content


def _is_balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if depth < 0:
            return False
    return depth == 0


def write_reply(keyword: str, content: str) -> str:
    """A reply that `read_reply` reads.

    Brackets are left out: neither words of a query nor normalized answers have any.
    """
    bare = content.replace("[", "").replace("]", "").strip()
    # Of an answer made of brackets alone normalization leaves nothing, as of a dot.
    return f"{keyword}[{bare or '.'}]"


def show_passages(passages: Sequence[Passage], passage_chars: int) -> str:
    """Numbered passages, each on one line and cut to a number of characters."""
    lines = []
    for number, passage in enumerate(passages, start=1):
        title = "" if passage.title is None else f"{passage.title}: "
        line = one_line(title + passage.text)
        if len(line) > passage_chars:
            line = line[: passage_chars - 3].rstrip() + "..."
        lines.append(f"{number}. {line}")
    return "\n".join(lines)


@functools.lru_cache(maxsize=64)
def _world_index(split: str, number: int) -> BM25Retriever:
    """One index per process and world, shared by all games."""
    return BM25Retriever(build_world(split, number).passages)


@functools.lru_cache(maxsize=2)
def _file_index(path: str, max_questions: int | None) -> BM25Retriever:
    return BM25Retriever(load_hotpot(path, max_questions).passages)


class SearchQA(HostGame):
    """Questions that take one or more searches to answer.

    A reply is `search[query]` or `finish[answer]`, in any case and with blanks around.
    An exact match, once normalized, pays 1 and is a success; else the F1 score of the
    words pays if it is at least 0.3. Every reply but the last can search; the game
    truncates after `max_searches + 1` replies.

    Attributes:
      metrics: `f1`, of the answer if one was given; `searches`, run so far.
    """

    metrics = ("f1", "searches")
    is_solvable = True

    def __init__(
        self,
        split: str = TRAINING,
        *,
        max_searches: int = 5,
        top_k: int = 3,
        passage_chars: int = 300,
        loose: bool = False,
        num_hops: int | None = None,
        num_worlds: int | None = None,
        data: str | None = None,
        max_questions: int | None = None,
        retriever: str | None = None,
        dialect: str | None = None,
        timeout_seconds: float | None = None,
    ):
        """Choose questions, passages and rules.

        The first search builds the index; that of a file the first reset.

        Args:
          split: one of `SPLITS`; they share no question.
          max_searches: replies before the last one.
          top_k: passages shown per search.
          passage_chars: longest passage; longer ones are cut.
          loose: a reply that is neither search nor answer is the answer, as it stands.
          num_hops: passages that a question of the invented world needs, 1 or 2 (the
            default); not with `data`.
          num_worlds: invented worlds of training, so that none is learned by heart;
            None: one. Validation always has one. Not with `data`.
          data: questions from this file of HotpotQA, JSON or parquet; None: the
            invented world.
          max_questions: only the first questions of `data`, and their passages; None:
            all.
          retriever: URL of a server with the passages; None: an index in memory.
          dialect: one of `client.DIALECTS`; None: found out. With `retriever`.
          timeout_seconds: for a search to be answered; None: 8. With `retriever`.

        Raises:
          ImportError: bm25s or, for parquet, pyarrow is not installed.
          ValueError: an option is out of range or of no use beside the others.
        """
        check_split(split)
        check_whole("max_searches", max_searches)
        check_whole("top_k", top_k)
        check_whole("passage_chars", passage_chars, FEWEST_PASSAGE_CHARS)
        check_bool("loose", loose)
        if num_worlds is not None:
            check_whole("num_worlds", num_worlds)
        self._source = _choose_questions(
            split, num_hops, num_worlds, data, max_questions
        )
        if retriever is not None:
            refuse_given(
                "beside retriever, whose server has the passages of one world; leave "
                "retriever out",
                num_worlds=num_worlds,
            )
        self._server = _reach(retriever, dialect, timeout_seconds)
        # The index of a file takes long to build, and a step has less time.
        self._prepares = data is not None
        # Two searches, and the answer; questions of a file may need more.
        self.longest_solution = 3 if data is None else None
        self.waits = retriever is not None
        if self._server is not None:
            self.max_step_seconds = self._server.timeout_seconds
        self._max_searches, self._top_k = max_searches, top_k
        self._passage_chars, self._loose = passage_chars, loose
        self.num_tasks = self._source.num_tasks
        self.instruction = INSTRUCTION.format(top_k=top_k, max_searches=max_searches)

    def reset(self, seed: int, task: int | None = None) -> Observation:
        """Ask a question; without a task, seeds go through all of them in turn."""
        check_task(task, self.num_tasks)
        index = seed % self.num_tasks if task is None else task
        self._task, self._question = index, self._source.question(index)
        self._replies = 0
        self._queries: list[str] = []
        self._shown: set[str] = set()
        self._ended = False
        if self._prepares:
            self._passages()
        return Observation(f"Question: {self._question.text}\n{self._say_left()}")

    def step(self, reply: str) -> Step:
        """Search or judge the answer.

        Raises:
          RetrievalError: the server does not answer as it should.
        """
        self._replies += 1
        read = read_reply(reply)
        if read is None and self._loose and 0 < len(reply.strip()) <= MAX_REPLY_CHARS:
            read = FINISH, reply.strip()
        if read is None:
            return self._go_on("Write search[words] or finish[answer].", valid=False)
        keyword, content = read
        if keyword == FINISH:
            return self._finish(content)
        if self._replies > self._max_searches:
            return self._go_on("No search was left.")
        self._queries.append(content)
        passages = self._passages().search(content, self._top_k)
        self._shown.update(passage.id for passage in passages)
        text = show_passages(passages, self._passage_chars)
        return self._go_on(text or "No passage has these words.")

    def solution(self) -> Sequence[str]:
        """The searches whose passages have not been shown, as far as they fit, and the
        answer."""
        if self._ended:
            return ()
        # A server may know the passages by other ids than the questions.
        asked = {write_reply(SEARCH, query) for query in self._queries}
        searches = [
            search
            for hop in self._question.hops
            if hop.passage_id not in self._shown
            and (search := write_reply(SEARCH, hop.query)) not in asked
        ]
        left = max(0, self._max_searches - self._replies)
        return (*searches[:left], write_reply(FINISH, self._question.answer))

    def _passages(self) -> Retriever:
        return self._server or self._source.passages(self._task)

    def _say_left(self) -> str:
        left = self._max_searches - self._replies
        if left == 0:
            return "No searches left: finish[answer]."
        return f"{left} {'search' if left == 1 else 'searches'} left."

    def _finish(self, answer: str) -> Step:
        truth = self._question.answer
        success, reward = exact_match(answer, truth), pay(answer, truth)
        verdict = "Right." if success else "Partly right." if reward else "Wrong."
        self._ended = True
        return Step(
            observation=Observation(verdict),
            reward=reward,
            terminated=True,
            truncated=False,
            info=self._info(success=success, f1=f1_score(answer, truth)),
        )

    def _go_on(self, text: str, valid: bool = True) -> Step:
        """A step that does not answer; after the last one the game is truncated."""
        self._ended = self._replies > self._max_searches
        after = "The question is unanswered." if self._ended else self._say_left()
        return Step(
            observation=Observation(f"{text}\n{after}"),
            reward=0.0,
            terminated=False,
            truncated=self._ended,
            info=self._info(valid=valid),
        )

    def _info(
        self, *, success: bool = False, valid: bool = True, f1: float = 0.0
    ) -> dict[str, float | bool]:
        searches = float(len(self._queries))
        return {"success": success, "valid": valid, "f1": f1, "searches": searches}


class _Source(Protocol):
    """Questions by their numbers, each with the passages about it."""

    num_tasks: int

    def question(self, task: int) -> Question: ...

    def passages(self, task: int) -> Retriever: ...


class _Invented:
    """The questions of invented worlds, neighbours of different worlds."""

    def __init__(self, split: str, kinds: tuple[str, ...], num_worlds: int):
        self._split, self._kinds, self._num_worlds = split, kinds, num_worlds
        self.num_tasks = num_worlds * len(build_questions(split, kinds))

    def question(self, task: int) -> Question:
        place, number = divmod(task, self._num_worlds)
        questions = build_questions(self._split, self._kinds, number)
        # Worlds differ a little in their numbers of questions.
        return questions[place % len(questions)]

    def passages(self, task: int) -> Retriever:
        return _world_index(self._split, task % self._num_worlds)


class _FromFile:
    """The questions of a file, about all of its passages."""

    def __init__(self, split: str, path: str, max_questions: int | None):
        self._file = path, max_questions
        self._questions = load_hotpot(*self._file).questions(split)
        self.num_tasks = len(self._questions)

    def question(self, task: int) -> Question:
        return self._questions[task]

    def passages(self, task: int) -> Retriever:
        return _file_index(*self._file)


def _choose_questions(
    split: str,
    num_hops: int | None,
    num_worlds: int | None,
    data: str | None,
    max_questions: int | None,
) -> _Source:
    if data is not None:
        refuse_given(
            f"beside data={data!r}, whose questions are as they are; leave data out",
            num_hops=num_hops,
            num_worlds=num_worlds,
        )
        return _FromFile(split, data, max_questions)
    refuse_given("without data; set data", max_questions=max_questions)
    hops = DEFAULT_NUM_HOPS if num_hops is None else num_hops
    check_one_of("num_hops", hops, KINDS_OF_HOPS)
    is_training = split == TRAINING and num_worlds is not None
    return _Invented(split, KINDS_OF_HOPS[hops], num_worlds if is_training else 1)


def _reach(
    url: str | None, dialect: str | None, timeout_seconds: float | None
) -> HttpRetriever | None:
    """The client of a server; None where the index will be in memory."""
    if url is None:
        refuse_given(
            "without retriever; set retriever",
            dialect=dialect,
            timeout_seconds=timeout_seconds,
        )
        refuse_without_bm25s(", or name a server with retriever=URL")
        return None
    return HttpRetriever(
        url,
        dialect=AUTO if dialect is None else dialect,
        timeout_seconds=(
            DEFAULT_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds
        ),
    )
