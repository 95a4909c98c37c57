"""The answer parser as one would write it on the host: a regex over bytes."""

import re
from collections.abc import Sequence

SHAPE = re.compile(rb"<think>(.*?)</think>\s*<answer>(.*?)</answer>", re.DOTALL)
ANSWER_ALONE = re.compile(rb"<answer>(.*?)</answer>", re.DOTALL)
LITERALS = (
    b"<think>",
    b"</think>",
    b"<answer>",
    b"</answer>",
    b"<|im_start|>",
    b"<|im_end|>",
)


def parse_reply(
    reply: bytes,
    vocabulary: Sequence[str | bytes],
    max_actions: int,
    *,
    thinking: bool = True,
) -> tuple[list[int], int, bool]:
    """Parses one reply, the forced `<think>` (or `<answer>`) not included in `reply`.

    Returns the first `max_actions` listed names as indices into `vocabulary` (-1 where
    unknown), how many names are listed in all, and whether the reply has the form.
    """
    listed = list_pieces(reply, thinking=thinking)
    if listed is None:
        return [], 0, False
    known = {
        (name.encode() if isinstance(name, str) else name).lower(): index
        for index, name in enumerate(vocabulary)
    }
    names = [known.get(name.lower(), -1) for name in listed[:max_actions]]
    return names, len(listed), True


def list_pieces(reply: bytes, *, thinking: bool = True) -> list[bytes] | None:
    """The pieces of the answer; None without the form."""
    if thinking:
        match = SHAPE.search(b"<think>" + reply)
    else:
        match = ANSWER_ALONE.search(b"<answer>" + reply)
    if match is None:
        return None
    answer = match.groups()[-1]
    for literal in LITERALS:
        answer = answer.replace(literal, b"")
    return [name for part in answer.strip().split(b"||") if (name := part.strip())]
