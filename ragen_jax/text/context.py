"""Windows: the part of a dialogue that the model reads before a reply.

In: the wording of a game and the name of a context. Out: `WindowPrompts` for the host
and, compiled, `WindowTemplates` for the device. A window is

    beginning, then for each earlier turn that it contains
        before_reply  the reply, as sampled  after_reply
    and ending

Contexts:

- "full": no windows. The model reads the dialogue as it grows.
- "last_k": the same dialogue without its oldest turns. A turn's message has two pieces:
  the result of the turn before, and the turn's state. The first is dropped together
  with the turn before, so every window starts with a state, never with the reward of
  something the model cannot see.
- "single_turn": one user message that contains the earlier turns, replies included, and
  asks for the next reply.

Replies are the recorded ids; nothing is ever tokenized again. In "single_turn" a reply
loses its stop token, since it is inside a message.
"""

import dataclasses

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int

from envs.templates import Choice, Template
from ragen_jax.text import chat
from ragen_jax.text.prompts import Wording
from ragen_jax.text.token_templates import (
    DeviceTemplate,
    Fields,
    Segments,
    check_neighbours,
    compile_template,
    concatenate,
)
from ragen_jax.text.tokenizer import Tokenizer
from ragen_jax.types import TokenSpan


@dataclasses.dataclass(frozen=True)
class WindowPrompts:
    """The pieces of a window as text.

    Attributes:
      beginning, ending: around the earlier turns; field `has_past`, 1 if there are any.
        The other fields of `ending` are those of the turn to be answered.
      before_reply, after_reply: around an earlier turn's reply, fields of that turn.
      shows_stop: replies of earlier turns keep their stop token.
    """

    beginning: Template
    ending: Template
    before_reply: Template
    after_reply: Template
    shows_stop: bool


@struct.dataclass
class WindowTemplates:
    """`WindowPrompts`, compiled; a pytree. Its functions are for one row.

    Attributes:
      num_past: most earlier turns in a window.
      max_past_tokens: most tokens of an earlier turn, reply included.
      max_tokens: `W`, most tokens of a window, the reply it asks for included.
    """

    beginning: DeviceTemplate
    ending: DeviceTemplate
    before_reply: DeviceTemplate
    after_reply: DeviceTemplate
    num_past: int = struct.field(pytree_node=False)
    shows_stop: bool = struct.field(pytree_node=False)
    max_past_tokens: int = struct.field(pytree_node=False)
    max_tokens: int = struct.field(pytree_node=False)

    def past_turn(
        self, fields: Fields, reply: TokenSpan, was_stopped: Int[Array, ""]
    ) -> TokenSpan:
        """A turn as part of later windows: `max_past_tokens` wide.

        Args:
          fields: of the turn, before its reply and after.
          reply: as sampled; `R` wide.
          was_stopped: 1 if its last token is a stop token.
        """
        length = reply.length if self.shows_stop else reply.length - was_stopped
        middle = Segments(reply.tokens[None, :], length[None])
        before = self.before_reply.segments(fields)
        return concatenate([*before, middle, *self.after_reply.segments(fields)])

    def prompt(self, fields: Fields, past: TokenSpan) -> TokenSpan:
        """A window without its reply: the tokens that the model reads.

        Args:
          fields: of the turn to be answered.
          past: [num_past, max_past_tokens] earlier turns, the oldest first; missing
            ones have length 0.
        """
        has_past = jnp.any(past.length > 0).astype(jnp.int32)
        fields = fields | {"has_past": has_past}
        turns = [Segments(past.tokens, past.length)] if self.num_past else []
        beginning = self.beginning.segments(fields)
        return concatenate([*beginning, *turns, *self.ending.segments(fields)])


def build_windows(
    wording: Wording,
    tokenizer: Tokenizer,
    *,
    tokenization: str,
    context: str,
    context_turns: int | None,
    max_turns: int,
    max_reply_tokens: int,
    known_ids: dict[str, list[int]],
) -> WindowTemplates | None:
    """The windows of a context, compiled; None for "full".

    Args:
      wording: of the game.
      tokenizer, tokenization, known_ids: see `compile_template`.
      context, context_turns: see `count_past`.
      max_turns: of an episode.
      max_reply_tokens: `R`.

    Raises:
      ValueError: see `count_past` and `compile_template`.
    """
    num_past = count_past(context, context_turns, max_turns)
    prompts = CONTEXTS[context](wording, num_past)
    if prompts is None:
        return None
    names = ("beginning", "ending", "before_reply", "after_reply")
    compiled = {
        name: compile_template(
            getattr(prompts, name), tokenizer, tokenization, known_ids=known_ids
        )
        for name in names
    }
    for first in (prompts.beginning, prompts.after_reply):
        for second in (prompts.before_reply, prompts.ending):
            check_neighbours(first, second, tokenizer, tokenization, known_ids)
    sizes = {name: template.max_tokens for name, template in compiled.items()}
    max_past = sizes["before_reply"] + max_reply_tokens + sizes["after_reply"]
    ends = sizes["beginning"] + sizes["ending"] + max_reply_tokens
    return WindowTemplates(
        **compiled,
        num_past=num_past,
        shows_stop=prompts.shows_stop,
        max_past_tokens=max_past,
        max_tokens=ends + num_past * max_past,
    )


def count_past(context: str, context_turns: int | None, max_turns: int) -> int:
    """Most earlier turns that the model sees.

    Args:
      context: entry of `CONTEXTS`.
      context_turns: turns it sees, the one to be answered included; None for "full",
        which shows them all.

    Raises:
      ValueError: an unknown context, or a `context_turns` that does not fit it.
    """
    if context not in CONTEXTS:
        raise ValueError(
            f"context={context!r} is unknown; choose one of {', '.join(CONTEXTS)}"
        )
    if context == "full" and context_turns is not None:
        raise ValueError(
            f"context_turns={context_turns} has no effect with context='full', which "
            "shows every turn; set context_turns=None or choose context='last_k' or "
            "'single_turn'"
        )
    if context != "full" and (context_turns is None or context_turns < 1):
        raise ValueError(
            f"context_turns={context_turns!r}: context={context!r} needs the number of "
            "turns that the model sees, at least 1 (the turn to be answered alone)"
        )
    num_seen = max_turns if context_turns is None else min(context_turns, max_turns)
    return num_seen - 1


def full(wording: Wording, num_past: int) -> None:
    """No windows: the model reads the dialogue as it grows."""
    del wording, num_past


def last_k(wording: Wording, num_past: int) -> WindowPrompts:
    """The dialogue without its oldest turns."""
    del num_past
    return WindowPrompts(
        beginning=chat.beginning(wording.system, wording.markup),
        ending=chat.request(wording.turn, wording.reply_prefix, wording.markup),
        before_reply=chat.request(wording.turn, wording.reply_prefix, wording.markup),
        after_reply=chat.rest_of_reply(wording.markup) + wording.result,
        shows_stop=True,
    )


def single_turn(wording: Wording, num_past: int) -> WindowPrompts:
    """One user message; without earlier turns it is the opening of a dialogue."""
    return WindowPrompts(
        beginning=chat.beginning(wording.system, wording.markup)
        + _if_past(wording.past_heading, num_past),
        ending=_if_past(wording.turn_heading, num_past)
        + chat.request(wording.turn, wording.reply_prefix, wording.markup),
        before_reply=wording.past_turn,
        after_reply=wording.past_result,
        shows_stop=False,
    )


def _if_past(heading: str, num_past: int) -> Template:
    """A heading if there are earlier turns; no text if windows never have any."""
    is_needed = heading and num_past
    return Template((Choice("has_past", ("", heading)),) if is_needed else ())


CONTEXTS = {"full": full, "last_k": last_k, "single_turn": single_turn}
