"""Messages as text, for models behind an API: requests, and replies parsed.

In: the turns of a dialogue and the wording of its game. Out: chat messages that ask for
the next reply; and the parsed actions of a reply given as text instead of token ids.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ragen_jax.text import chat
from ragen_jax.text.answers import ANSWER_BEGIN, ANSWER_END, REMOVED, SEPARATOR
from ragen_jax.text.answers import THINK_END as _THINK_END
from ragen_jax.text.prompts import Wording
from ragen_jax.types import ParsedAnswer

# A role and its content: a text, or parts of texts and images.
Message = dict[str, Any]
ROLES = {
    "system": chat.SYSTEM_HEADER,
    "user": chat.USER_HEADER,
    "assistant": chat.REPLY_HEADER,
}


@dataclasses.dataclass(frozen=True)
class DialogueTurn:
    """A turn of a dialogue.

    Attributes:
      fields: values of the fields of `Wording.turn`.
      reply: text after the forced prefix; None for the turn to be answered.
      result: values of the fields of `Wording.result`; None before the reply.
    """

    fields: Mapping[str, Any]
    reply: str | None = None
    result: Mapping[str, Any] | None = None


def strip_prefix(reply: str, prefix: str) -> str:
    """A reply without the prefix it may begin with."""
    begun = reply.lstrip()
    return begun.removeprefix(prefix) if begun.startswith(prefix) else reply


def chat_messages(
    wording: Wording, turns: Sequence[DialogueTurn], *, context: str, num_past: int
) -> list[Message]:
    """Chat messages that ask for the reply of the last turn.

    Args:
      wording: of the game.
      turns: all so far, the oldest first; the last has no reply yet.
      context, num_past: entry of `context.CONTEXTS`; earlier turns it shows, at most.
    """
    shown = turns[-(num_past + 1) :]
    write = _in_one_message if context == "single_turn" else _turn_by_turn
    system = {"role": "system", "content": wording.system.render({})}
    return [system, *write(wording, shown)]


def add_images(
    messages: Sequence[Message], images: Sequence[Sequence[str]]
) -> list[Message]:
    """Chat messages that show the images of turns beside their texts.

    Args:
      messages: of `chat_messages`. One message for all turns shows the last turn's.
      images: of each turn so far, PNG files in base64.
    """
    users = [i for i, message in enumerate(messages) if message["role"] == "user"]
    shown = list(messages)
    # The last message of the user belongs to the last turn.
    for i, of_turn in zip(reversed(users), reversed(images), strict=False):
        if of_turn:
            urls = [f"data:image/png;base64,{image}" for image in of_turn]
            parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
            text = {"type": "text", "text": messages[i]["content"]}
            shown[i] = {"role": "user", "content": [text, *parts]}
    return shown


def in_markup(messages: Sequence[Message], prefix: str) -> str:
    """The messages as the model's text, up to where its reply begins."""
    texts = [f"{ROLES[m['role']]}{m['content']}{chat.END}\n" for m in messages]
    return "".join(texts) + chat.REPLY_HEADER + prefix


def _turn_by_turn(wording: Wording, shown: Sequence[DialogueTurn]) -> list[Message]:
    messages = []
    for i, turn in enumerate(shown):
        user = wording.turn.render(turn.fields)
        if i:
            user = wording.result.render(shown[i - 1].result) + user
        messages.append({"role": "user", "content": user})
        if turn.reply is not None:
            reply = wording.reply_prefix + turn.reply
            messages.append({"role": "assistant", "content": reply})
    return messages


def _in_one_message(wording: Wording, shown: Sequence[DialogueTurn]) -> list[Message]:
    *past, last = shown
    history = "".join(
        wording.past_turn.render(turn.fields)
        + turn.reply
        + wording.past_result.render(turn.result)
        for turn in past
    )
    if past:
        history = wording.past_heading + history + wording.turn_heading
    return [{"role": "user", "content": history + wording.turn.render(last.fields)}]


_BEGINNING = re.compile(re.escape(_THINK_END) + rb"\s*" + re.escape(ANSWER_BEGIN))


def parse_text(
    reply: str,
    vocabulary: Sequence[str],
    *,
    max_actions: int,
    thinking: bool,
    answer_bytes: int = 0,
) -> ParsedAnswer:
    """Reads a reply; the forced prefix may be there or not.

    Args:
      reply: any text.
      vocabulary: the names an action can have in any level.
      max_actions: names that count (`A`).
      thinking: the form asks for a thought before the answer.
      answer_bytes: see `build_parser`.
    """
    answer = find_answer(reply.encode("utf-8", "replace"), thinking)
    has_format = answer is not None
    answer = answer or b""
    for literal in REMOVED:
        answer = answer.replace(literal, b"")
    pieces = (piece.strip() for piece in answer.split(SEPARATOR))
    listed = [piece for piece in pieces if piece]
    counted = listed[:max_actions]
    if answer_bytes:
        texts = np.zeros((max_actions, answer_bytes), np.uint8)
        sizes = np.zeros(max_actions, np.int32)
        for i, piece in enumerate(counted):
            shown = piece[:answer_bytes]
            texts[i, : len(shown)], sizes[i] = list(shown), len(piece)
        found = {"texts": texts, "sizes": sizes}
    else:
        known = {name.encode().lower(): i for i, name in enumerate(vocabulary)}
        names = np.full(max_actions, -1, np.int32)
        names[: len(counted)] = [known.get(piece.lower(), -1) for piece in counted]
        found = {"names": names}
    return ParsedAnswer(
        **found,
        num_names=np.int32(len(counted)),
        num_listed=np.int32(len(listed)),
        has_format=np.bool_(has_format),
    )


def find_answer(reply: bytes, thinking: bool) -> bytes | None:
    """What a reply has between the tags of its answer, None without one.

    The forced prefix may be there or not. A single pass over the reply.
    """
    start = 0
    if thinking:
        beginning = _BEGINNING.search(reply)
        if beginning is None:
            return None
        start = beginning.end()
    end = reply.find(ANSWER_END, start)
    return None if end < 0 else reply[start:end]
