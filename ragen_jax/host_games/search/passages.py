"""Passages, questions, and the hash that draws and splits them.

In: nothing. Out: what the parts of the search game hand each other.
"""

import dataclasses
import hashlib


@dataclasses.dataclass(frozen=True)
class Passage:
    """A short text that a search can find.

    Attributes:
      id: names it within its collection; from a server that gives none, its rank.
      text: what it says.
      title: what it is about; None where `text` says so.
      score: how well it fits the query, higher is better; None before a search and
        from a server that does not say.
    """

    id: str
    text: str
    title: str | None = None
    score: float | None = None


@dataclasses.dataclass(frozen=True)
class Hop:
    """One search on the way to an answer.

    Attributes:
      query: words to search for.
      passage_id: of the passage with the fact that is needed.
    """

    query: str
    passage_id: str


@dataclasses.dataclass(frozen=True)
class Question:
    """A question with its answer.

    Attributes:
      id: names it, the same in every process.
      text: as the player reads it.
      answer: the only right one, up to what `search_scores.normalize` removes.
      hops: searches that find what the answer follows from, in order.
    """

    id: str
    text: str
    answer: str
    hops: tuple[Hop, ...]


def stable_hash(*parts: str | int) -> int:
    """A number from 0 to 2**64 - 1 that depends on nothing but `parts`.

    Neither `hash`, which differs per process, nor a generator of random numbers, whose
    stream may differ per version.
    """
    # repr keeps ("a", "bc") and ("ab", "c") apart.
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def one_line(text: str) -> str:
    """A text of unknown origin, control characters and runs of blanks as one blank."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(printable.split())
