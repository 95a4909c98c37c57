"""Questions and the searches that answer them.

In: nothing. Out: what the parts of the search game hand each other.
"""

import dataclasses


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
      answer: the only right one, up to what `scores.normalize` removes.
      hops: searches that find what the answer follows from, in order.
    """

    id: str
    text: str
    answer: str
    hops: tuple[Hop, ...]
