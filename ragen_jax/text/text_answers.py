"""Replies parsed on the host, for those who reply in text.

In: the text of one reply. Out: the same `ParsedAnswer` that `ragen_jax.text.answers`
reads from its tokens; the rules stand there.
"""

import re
from collections.abc import Sequence

import numpy as np

from ragen_jax.text.answers import ANSWER_BEGIN, ANSWER_END, REMOVED, SEPARATOR
from ragen_jax.text.answers import THINK_END as _THINK_END
from ragen_jax.types import ParsedAnswer

_BEGINNING = re.compile(re.escape(_THINK_END) + rb"\s*" + re.escape(ANSWER_BEGIN))


def parse_text(
    reply: str, vocabulary: Sequence[str], *, max_actions: int, thinking: bool
) -> ParsedAnswer:
    """Reads a reply; the forced prefix may be there or not.

    Args:
      reply: any text.
      vocabulary: the names an action can have in any level.
      max_actions: names that count (`A`).
      thinking: the form asks for a thought before the answer.
    """
    answer = _find_answer(reply.encode("utf-8", "replace"), thinking)
    has_format = answer is not None
    answer = answer or b""
    for literal in REMOVED:
        answer = answer.replace(literal, b"")
    pieces = (piece.strip() for piece in answer.split(SEPARATOR))
    listed = [piece.lower() for piece in pieces if piece]
    known = {name.encode().lower(): index for index, name in enumerate(vocabulary)}
    names = np.full(max_actions, -1, np.int32)
    counted = listed[:max_actions]
    names[: len(counted)] = [known.get(name, -1) for name in counted]
    return ParsedAnswer(
        names=names,
        num_names=np.int32(len(counted)),
        num_listed=np.int32(len(listed)),
        has_format=np.bool_(has_format),
    )


def _find_answer(text: bytes, thinking: bool) -> bytes | None:
    """The answer's text; one pass, whatever the reply holds."""
    start = 0
    if thinking:
        beginning = _BEGINNING.search(text)
        if beginning is None:
            return None
        start = beginning.end()
    end = text.find(ANSWER_END, start)
    return None if end < 0 else text[start:end]
