"""A dialogue as chat messages: what is sent to those who take no tokens.

In: the wording of a game and the turns so far, in text. Out: messages of the roles
"system", "user" and "assistant". In ChatML's markup (`in_markup`) they are the text
that a policy on the device reads, whatever part of the dialogue it is shown.

The forced prefix of a reply, `<think>` or `<answer>`, is part of the assistant's
messages. Nobody can be made to begin with it, so it may be missing from a reply; for
the record and for the parser a reply is what comes after it.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ragen_jax.text import chat
from ragen_jax.text.prompts import Wording

Message = dict[str, str]
ROLES = {
    "system": chat.SYSTEM_HEADER,
    "user": chat.USER_HEADER,
    "assistant": chat.REPLY_HEADER,
}


@dataclasses.dataclass(frozen=True)
class ToldTurn:
    """A turn of a dialogue.

    Attributes:
      fields: values of the fields of `Wording.turn`.
      reply: what was answered, after the forced prefix; None: it is asked for.
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
    wording: Wording, turns: Sequence[ToldTurn], *, context: str, num_past: int
) -> list[Message]:
    """What is sent to get the reply of the last turn.

    Args:
      wording: of the game.
      turns: all so far, the oldest first; the last has no reply yet.
      context, num_past: entry of `windows.CONTEXTS`; earlier turns it shows, at most.
    """
    shown = turns[-(num_past + 1) :]
    tell = _in_one_message if context == "single_turn" else _turn_by_turn
    system = {"role": "system", "content": wording.system.render({})}
    return [system, *tell(wording, shown)]


def in_markup(messages: Sequence[Message], prefix: str) -> str:
    """The messages as the model's text, up to where its reply begins."""
    told = [f"{ROLES[m['role']]}{m['content']}{chat.END}\n" for m in messages]
    return "".join(told) + chat.REPLY_HEADER + prefix


def _turn_by_turn(wording: Wording, shown: Sequence[ToldTurn]) -> list[Message]:
    messages = []
    for i, turn in enumerate(shown):
        user = wording.turn.render(turn.fields)
        if i:
            user = wording.result.render(shown[i - 1].result) + user
        messages.append({"role": "user", "content": user})
        if turn.reply is not None:
            said = wording.reply_prefix + turn.reply
            messages.append({"role": "assistant", "content": said})
    return messages


def _in_one_message(wording: Wording, shown: Sequence[ToldTurn]) -> list[Message]:
    *past, last = shown
    told = "".join(
        wording.past_turn.render(turn.fields)
        + turn.reply
        + wording.past_result.render(turn.result)
        for turn in past
    )
    if past:
        told = wording.past_heading + told + wording.turn_heading
    return [{"role": "user", "content": told + wording.turn.render(last.fields)}]
