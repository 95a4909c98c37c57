"""The first message of a group, which a pass can read once for all of its rows.

In: rows of whole groups, as long as a dialogue. Out: one prompt per group, and the rows
without it. Rows of a group play the same level, so that their first message is the
same; its length is recorded, as the place of their first reply.

A prompt leaves out the message's last token, with which the rows begin: the first
token of a reply is drawn from the state after it.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

from ragen_jax.types import TokenSpan


@dataclasses.dataclass(frozen=True)
class SharedPrompts:
    """Sizes of prompts and of rows without them.

    Attributes:
      message_tokens: most tokens of a first message.
      following_tokens: most tokens of a row after its first message.
      group_size: adjacent rows that share it.
    """

    message_tokens: int
    following_tokens: int
    group_size: int

    def read(
        self,
        tokens: Int[Array, "m T"],
        mask: Bool[Array, "m T"],
        message_lengths: Int[Array, " m"],
    ) -> TokenSpan:
        """The prompt of each group.

        Args:
          tokens: rows of whole groups.
          mask: trained tokens. A host game that failed at its start shows another
            message; its row has none.
          message_lengths: tokens of each row's first message.
        """
        is_trained = jnp.any(mask, axis=1).reshape(-1, self.group_size)
        speaker = jnp.argmax(is_trained, axis=1)

        def take(x):
            rows = x.reshape(*is_trained.shape, -1)
            return jnp.take_along_axis(rows, speaker[:, None, None], axis=1)[:, 0]

        length = jnp.maximum(take(message_lengths)[:, 0] - 1, 0)
        return TokenSpan(take(tokens)[:, : self.message_tokens - 1], length)

    def cut(
        self, rows: PyTree[Shaped[Array, "m ..."]], prompts: TokenSpan
    ) -> PyTree[Shaped[Array, "m ..."]]:
        """Arrays [m, T] from the first message's last token on; others as they are."""
        starts, width = self._starts(prompts), self.following_tokens + 1

        def cut(x):
            if x.ndim < 2:
                return x
            # Games of a mix: no row has the longest message and the longest rest.
            missing = max(0, self.message_tokens + self.following_tokens - x.shape[1])
            x = jnp.pad(x, [(0, 0), (0, missing)])
            take = jax.vmap(jax.lax.dynamic_slice_in_dim, (0, 0, None))
            return take(x, starts, width)

        return jax.tree.map(cut, rows)

    def put_back(
        self, rows: Float[Array, "m W"], prompts: TokenSpan, num_tokens: int
    ) -> Float[Array, "m T"]:
        """Inverse of `cut`; 0 elsewhere."""
        longest = max(num_tokens, self.message_tokens + self.following_tokens)
        blank = jnp.zeros((rows.shape[0], longest), rows.dtype)
        put = jax.vmap(jax.lax.dynamic_update_slice_in_dim, (0, 0, 0, None))
        return put(blank, rows, self._starts(prompts), 0)[:, :num_tokens]

    def whole_groups(self, kept: Bool[Array, " B"]) -> Bool[Array, " B"]:
        """All rows of the groups of which one is kept."""
        by_group = kept.reshape(-1, self.group_size)
        return jnp.repeat(jnp.any(by_group, axis=1), self.group_size)

    def longest(self, lengths: Int[Array, " B"]) -> Int[Array, " B"]:
        """The longest of each group, for each of its rows."""
        by_group = lengths.reshape(-1, self.group_size)
        return jnp.repeat(jnp.max(by_group, axis=1), self.group_size)

    def _starts(self, prompts: TokenSpan) -> Int[Array, " m"]:
        return jnp.repeat(prompts.length, self.group_size)
