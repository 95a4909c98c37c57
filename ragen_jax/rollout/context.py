"""What the model sees of a dialogue it does not see whole, as a rollout goes along.

In: the turns as they are played. Out: the prompt of every turn, made of recorded ids,
and the `Windows` of a trajectory. What a window says is worded and compiled in
`ragen_jax.text.context`; here it is remembered.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array

from ragen_jax.rollout.transcript import Turn, write_rows
from ragen_jax.text.context import WindowTemplates
from ragen_jax.text.dialogue import Dialogue
from ragen_jax.types import Reply, TokenSpan, Windows


@struct.dataclass
class Memory:
    """What the prompts to come are made of, and the windows so far.

    Attributes:
      past: the last turns as windows show them, the oldest first: tokens [B, P, E] and
        lengths [B, P], 0 where there were fewer. `P` earlier turns fit in a window, `E`
        is the longest of them.
      windows: the model's view of every turn so far.
    """

    past: TokenSpan
    windows: Windows


def empty_memory(dialogue: Dialogue, num_rows: int, num_turns: int) -> Memory | None:
    """Before the first turn; None where the model reads the whole dialogue."""
    templates = dialogue.windows
    if templates is None:
        return None
    per_turn, per_past = (num_rows, num_turns), (num_rows, templates.num_past)
    return Memory(
        past=TokenSpan(
            tokens=jnp.zeros((*per_past, templates.max_past_tokens), jnp.int32),
            length=jnp.zeros(per_past, jnp.int32),
        ),
        windows=Windows(
            tokens=jnp.zeros((*per_turn, dialogue.max_window_tokens), jnp.int32),
            lengths=jnp.zeros(per_turn, jnp.int32),
            reply_start=jnp.zeros(per_turn, jnp.int32),
        ),
    )


def recall(
    memory: Memory, templates: WindowTemplates, fields: dict[str, Array]
) -> TokenSpan:
    """The prompt of a turn in every row.

    Args:
      fields: of the turn, rows leading.
    """
    return jax.vmap(templates.prompt)(fields, memory.past)


def note_prompt(memory: Memory, prompt: TokenSpan, turn: Turn) -> Memory:
    """Enter what was read before the reply of a turn; rows of length 0 did not play."""
    windows = memory.windows
    begins = jnp.zeros_like(prompt.length)
    row = windows.tokens[:, turn]
    row = write_rows(row, prompt.tokens, prompt.length, begins)
    return memory.replace(
        windows=Windows(
            tokens=windows.tokens.at[:, turn].set(row),
            lengths=windows.lengths.at[:, turn].set(prompt.length),
            reply_start=windows.reply_start.at[:, turn].set(prompt.length),
        )
    )


def note_reply(
    memory: Memory,
    templates: WindowTemplates,
    fields: dict[str, Array],
    reply: Reply,
    turn: Turn,
) -> Memory:
    """Enter a turn's replies, and keep the turn for the windows to come.

    Args:
      fields: of the turn, before its reply and after, rows leading.
    """
    windows, past = memory.windows, memory.past
    row, starts = windows.tokens[:, turn], windows.reply_start[:, turn]
    row = write_rows(row, reply.tokens, reply.length, starts)
    windows = windows.replace(
        tokens=windows.tokens.at[:, turn].set(row),
        lengths=windows.lengths.at[:, turn].add(reply.length),
    )
    if not templates.num_past:
        return memory.replace(windows=windows)
    was_stopped = ((reply.length > 0) & ~reply.is_cut).astype(jnp.int32)
    said = TokenSpan(tokens=reply.tokens, length=reply.length)
    newest = jax.vmap(templates.past_turn)(fields, said, was_stopped)
    past = jax.tree.map(
        lambda old, new: jnp.concatenate([old[:, 1:], new[:, None]], axis=1),
        past,
        newest,
    )
    return Memory(past=past, windows=windows)
