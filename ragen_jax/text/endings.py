"""The end of a reply as text: a matcher of `</answer>` that reads token ids.

In: the bytes of every token. Out: `TextEnd`, a table that a decoding loop looks up once
a token. How the text is cut into tokens never matters: the matcher's state is the
number of bytes of the text that the reply ends with so far, and a token moves it by all
of its bytes (Knuth, Morris and Pratt's automaton, composed over each token's bytes).
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int, UInt8

from ragen_jax.text.answers import ANSWER_END


@struct.dataclass
class TextEnd:
    """Finds the first occurrence of a text in replies; a pytree.

    Attributes:
      next_states: state after a token, by token and state before; state `n - 1`: the
        text has occurred. The last row is for ids without bytes.
    """

    next_states: UInt8[Array, "V+1 n"]

    def advance(
        self, states: UInt8[Array, " B"], tokens: Int[Array, " B"]
    ) -> tuple[UInt8[Array, " B"], Bool[Array, " B"]]:
        """States after a token of each row (0 before the first), and which have ended.

        The token that completes the text is the last one of its reply; bytes after the
        text in that token stay in it.
        """
        last_row, last_state = (size - 1 for size in self.next_states.shape)
        states = self.next_states[jnp.minimum(tokens, last_row), states]
        return states, states == last_state


def find_answer_end(token_bytes: Sequence[bytes]) -> TextEnd:
    """Finds `</answer>`.

    Args:
      token_bytes: bytes of every id, b"" for special tokens.
    """
    automaton = _automaton(ANSWER_END)
    num_states = len(automaton)
    states = np.tile(np.arange(num_states, dtype=np.uint8), (len(token_bytes) + 1, 1))
    lengths = np.array([*map(len, token_bytes), 0])
    for place in range(lengths.max()):
        rows = np.flatnonzero(lengths > place)
        read = np.array([token_bytes[row][place] for row in rows])
        states[rows] = automaton[states[rows], read[:, None]]
    return TextEnd(jnp.asarray(states))


def _automaton(text: bytes) -> np.ndarray:
    """UInt8[len(text) + 1, 256]: state after a byte; the last state is never left."""
    table = np.full((len(text) + 1, 256), len(text), np.uint8)
    for state in range(len(text)):
        for byte in range(256):
            read = text[:state] + bytes([byte])
            # The longest end of what was read that begins the text.
            ends = (n for n in range(len(read), -1, -1) if read.endswith(text[:n]))
            table[state, byte] = next(ends)
    return table
