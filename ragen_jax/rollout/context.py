"""Windows of the dialogue: the model's view where it does not see every turn.

In: the turns as they are played. Out: the prompt of every turn, made of recorded ids,
and the `Windows` of a trajectory. `ragen_jax.text.context` words and compiles the
prompts; this file records the turns that they show.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool

from ragen_jax.rollout.transcript import Turn, write_rows
from ragen_jax.text.context import WindowTemplates
from ragen_jax.text.dialogue import Dialogue
from ragen_jax.types import Reply, TokenSpan, Windows


@struct.dataclass
class ContextWindow:
    """The turns shown by later prompts, and the windows so far.

    Attributes:
      past: the last turns as windows show them, the oldest first: tokens [B, P, E] and
        lengths [B, P], 0 for missing turns. `P` earlier turns fit in a window, `E` is
        the length of the longest.
      windows: the model's view of every turn so far.
    """

    past: TokenSpan
    windows: Windows


def empty_window(
    dialogue: Dialogue, num_rows: int, num_turns: int
) -> ContextWindow | None:
    """The window before the first turn; None if the model reads the whole dialogue."""
    templates = dialogue.windows
    if templates is None:
        return None
    per_turn, per_past = (num_rows, num_turns), (num_rows, templates.num_past)
    return ContextWindow(
        past=TokenSpan(
            tokens=jnp.zeros((*per_past, templates.max_past_tokens), jnp.int32),
            length=jnp.zeros(per_past, jnp.int32),
        ),
        windows=Windows(
            tokens=jnp.zeros((*per_turn, dialogue.max_window_tokens), jnp.int32),
            lengths=jnp.zeros(per_turn, jnp.int32),
            reply_start=jnp.zeros(per_turn, jnp.int32),
            # A window per turn.
            of_turn=jnp.broadcast_to(jnp.arange(num_turns, dtype=jnp.int32), per_turn),
        ),
    )


def render_window(
    window: ContextWindow, templates: WindowTemplates, fields: dict[str, Array]
) -> TokenSpan:
    """The prompt of a turn in every row.

    Args:
      fields: of the turn, rows leading.
    """
    return jax.vmap(templates.prompt)(fields, window.past)


def record_prompt(
    window: ContextWindow, prompt: TokenSpan, turn: Turn
) -> ContextWindow:
    """Record the prompt of a turn; rows of length 0 did not play."""
    windows = window.windows
    begins = jnp.zeros_like(prompt.length)
    row = windows.tokens[:, turn]
    row = write_rows(row, prompt.tokens, prompt.length, begins)
    return window.replace(
        windows=windows.replace(
            tokens=windows.tokens.at[:, turn].set(row),
            lengths=windows.lengths.at[:, turn].set(prompt.length),
            reply_start=windows.reply_start.at[:, turn].set(prompt.length),
        )
    )


def record_reply(
    window: ContextWindow,
    templates: WindowTemplates,
    fields: dict[str, Array],
    reply: Reply,
    turn: Turn,
    was_stopped: Bool[Array, " B"],
) -> ContextWindow:
    """Record a turn's replies, and keep the turn for later windows.

    Args:
      fields: of the turn, before its reply and after, rows leading.
      was_stopped: a stop token ends the reply; the window may have to write it itself.
    """
    windows, past = window.windows, window.past
    row, starts = windows.tokens[:, turn], windows.reply_start[:, turn]
    row = write_rows(row, reply.tokens, reply.length, starts)
    windows = windows.replace(
        tokens=windows.tokens.at[:, turn].set(row),
        lengths=windows.lengths.at[:, turn].add(reply.length),
    )
    if not templates.num_past:
        return window.replace(windows=windows)
    written = TokenSpan(tokens=reply.tokens, length=reply.length)
    newest = jax.vmap(templates.past_turn)(
        fields, written, was_stopped.astype(jnp.int32)
    )
    past = jax.tree.map(
        lambda old, new: jnp.concatenate([old[:, 1:], new[:, None]], axis=1),
        past,
        newest,
    )
    return ContextWindow(past=past, windows=windows)
