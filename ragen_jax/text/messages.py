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
    """A reply without the prefix that the prompt could not force on it.

    Where the prefix begins an answer, what precedes the reply's own answer, a thought
    or other words, is left out: it would be read as the first action.
    """
    begun = reply.lstrip()
    if begun.startswith(prefix):
        return begun.removeprefix(prefix)
    if prefix != ANSWER_BEGIN.decode():
        return reply
    _, end, after = reply.rpartition(_THINK_END.decode())
    if not end and "<think>" in after:
        # A thought that was cut: what it holds is not an answer, and nothing ends one.
        return reply.partition(ANSWER_END.decode())[0]
    # The tag nearest to the end of the answer: words before it may name the tag, too.
    start = after.rfind(prefix, 0, max(after.find(ANSWER_END.decode()), 0))
    return after if start < 0 else after[start + len(prefix) :]


def chat_messages(
    wording: Wording, turns: Sequence[DialogueTurn], *, context: str, num_past: int
) -> list[Message]:
    """Chat messages that ask for the reply of the last turn.

    Args:
      wording: of the game.
      turns: all so far, the oldest first; the last has no reply yet.
      context, num_past: entry of `context.CONTEXTS`, and most earlier turns in it.
    """
    turns = turns[-(num_past + 1) :]
    write = _in_one_message if context == "single_turn" else _turn_by_turn
    system = {"role": "system", "content": wording.system.render({})}
    return [system, *write(wording, turns)]


def add_images(
    messages: Sequence[Message], images: Sequence[Sequence[str]]
) -> list[Message]:
    """Chat messages with the images of turns beside their texts.

    Args:
      messages: of `chat_messages`. One message for all turns gets the last turn's.
      images: of each turn so far, PNG files in base64.
    """
    users = [i for i, message in enumerate(messages) if message["role"] == "user"]
    with_images = list(messages)
    # The last message of the user belongs to the last turn.
    for i, of_turn in zip(reversed(users), reversed(images), strict=False):
        if of_turn:
            urls = [f"data:image/png;base64,{image}" for image in of_turn]
            parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
            text = {"type": "text", "text": messages[i]["content"]}
            with_images[i] = {"role": "user", "content": [text, *parts]}
    return with_images


def in_markup(
    messages: Sequence[Message], prefix: str, markup: chat.Markup = chat.CHATML
) -> str:
    """The messages as the model's text, up to where its reply begins."""
    end = markup.end + markup.gap
    texts = [f"{markup.header_of(m['role'])}{m['content']}{end}" for m in messages]
    return "".join([markup.begin, *texts, markup.header_of("assistant"), prefix])


def _turn_by_turn(wording: Wording, turns: Sequence[DialogueTurn]) -> list[Message]:
    messages = []
    for i, turn in enumerate(turns):
        user = wording.turn.render(turn.fields)
        if i:
            user = wording.result.render(turns[i - 1].result) + user
        messages.append({"role": "user", "content": user})
        if turn.reply is not None:
            reply = wording.reply_prefix + turn.reply
            messages.append({"role": "assistant", "content": reply})
    return messages


def _in_one_message(wording: Wording, turns: Sequence[DialogueTurn]) -> list[Message]:
    *past, last = turns
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
    """Parse a reply, with or without the forced prefix.

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
    stripped = (piece.strip() for piece in answer.split(SEPARATOR))
    listed = [piece for piece in stripped if piece]
    counted = listed[:max_actions]
    if answer_bytes:
        texts = np.zeros((max_actions, answer_bytes), np.uint8)
        sizes = np.zeros(max_actions, np.int32)
        for i, piece in enumerate(counted):
            head = piece[:answer_bytes]
            texts[i, : len(head)], sizes[i] = list(head), len(piece)
        pieces = {"texts": texts, "sizes": sizes}
    else:
        known = {name.encode().lower(): i for i, name in enumerate(vocabulary)}
        names = np.full(max_actions, -1, np.int32)
        names[: len(counted)] = [known.get(piece.lower(), -1) for piece in counted]
        pieces = {"names": names}
    return ParsedAnswer(
        **pieces,
        num_names=np.int32(len(counted)),
        num_listed=np.int32(len(listed)),
        has_format=np.bool_(has_format),
    )


def find_answer(reply: bytes, thinking: bool) -> bytes | None:
    """Text between the answer tags of a reply, None without an answer.

    The reply may have the forced prefix or not. It is read in a single pass.
    """
    start = 0
    if thinking:
        beginning = _BEGINNING.search(reply)
        if beginning is None:
            return None
        start = beginning.end()
    end = reply.find(ANSWER_END, start)
    return None if end < 0 else reply[start:end]
