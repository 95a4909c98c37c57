"""Replies parsed on the device: token ids in, listed actions out.

In: the ids of one reply and how many count. Out: `ParsedAnswer`. The ids become bytes
through a table, so how a reply was cut into tokens never matters, and the bytes are
searched with vector operations. Knows names, not games: the caller decides whether a
name is an action of the present level.

The rules, for the text `<think>` + reply (the prefix is forced by the prompt):

1. It has the form if `<think>(.*?)</think>\\s*<answer>(.*?)</answer>` is found in it.
   Tags are case-sensitive. Without the form nothing is listed. If no thought is asked
   for, the prefix is `<answer>` and the form `<answer>(.*?)</answer>`.
2. From the answer, the literals of `REMOVED` are deleted, in that order, each in one
   pass over what the passes before it left.
3. The rest is split at `||` from the left, the pieces are stripped, empty ones dropped.
4. The first `max_actions_per_turn` pieces count. Each is compared with the names of the
   vocabulary, capital letters being equal to small ones. A game that reads answers
   itself gets their bytes instead (`TextEnvironment.read_action`).

White space and case are ASCII's. Special tokens have no bytes for the parser.
`tests/reference/answer_oracle.py` states the same rules as a regex. Source: RAGEN's
context manager; the forced prefix can take part in the first match only.

Letters: `R` reply tokens, `A` actions per turn, `M` bytes per token, `N = R * M` bytes
of a reply, `V` vocabulary, `C` action names, `E` bytes of the longest action.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import Protocol

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Int, UInt8, UInt32

from ragen_jax.text import byte_strings
from ragen_jax.types import ParsedAnswer

THINK_END = b"</think>"
ANSWER_BEGIN = b"<answer>"
ANSWER_END = b"</answer>"
REMOVED = (
    b"<think>",
    THINK_END,
    ANSWER_BEGIN,
    ANSWER_END,
    b"<|im_start|>",
    b"<|im_end|>",
)
SEPARATOR = b"||"

# Fields of `ParsedAnswer` for one piece, or for several on a leading axis.
Pieces = dict[str, Array]


class HasTokenBytes(Protocol):
    """The part of a tokenizer that the parser needs: the bytes of every id."""

    token_bytes: Sequence[bytes]


@struct.dataclass
class AnswerParser:
    """Tables of a parser; a pytree, so that it can be an argument of a jitted function.

    Attributes:
      token_bytes: bytes of each token, zero-padded; the last row is the empty token,
        for ids out of range and for positions past a reply's length.
      token_lengths: bytes of each token.
      name_bytes: the action vocabulary in small letters, zero-padded; None, like
        `name_lengths`, if the game reads answers itself.
      name_lengths: bytes of each name.
      piece_bytes: bytes of the longest action (`E`).
      thinking: the form asks for a thought before the answer.
      max_actions: names that count per reply (`A`).
      max_reply_tokens: tokens of a reply's array (`R`).
    """

    token_bytes: UInt8[Array, "V+1 M"]
    token_lengths: Int[Array, " V+1"]
    name_bytes: UInt8[Array, "C E"] | None
    name_lengths: Int[Array, " C"] | None
    piece_bytes: int = struct.field(pytree_node=False)
    thinking: bool = struct.field(pytree_node=False)
    max_actions: int = struct.field(pytree_node=False)
    max_reply_tokens: int = struct.field(pytree_node=False)

    def parse(
        self, reply_tokens: Int[Array, " R"], length: Int[Array, ""]
    ) -> ParsedAnswer:
        """Parses one reply; `vmap` it over rows.

        Args:
          reply_tokens: ids; those outside the tokenizer's vocabulary count as empty.
          length: how many of them count.
        """
        if reply_tokens.shape != (self.max_reply_tokens,):
            raise ValueError(
                f"the parser reads one reply of {self.max_reply_tokens} tokens, got "
                f"an array of shape {reply_tokens.shape}; vmap it over rows or build "
                "it with another max_reply_tokens"
            )
        text = byte_strings.join(
            self.token_bytes, self.token_lengths, reply_tokens, length, tail=self._tail
        )
        num_bytes = text.shape[0] - self._tail
        find = _find_answer if self.thinking else _find_answer_alone
        has_format, start, stop = find(text, num_bytes)
        answer = lax.dynamic_slice(text, (start,), (self._window + self._margin,))
        # Deleting literals moves all bytes after them and needs the whole text. Nearly
        # all answers fit in the window and have no markup. The others are read again,
        # from the whole text, in a branch that is taken only if some row needs it.
        parsed = self._read_pieces(answer, self._window, stop - start)
        inside = jnp.arange(answer.shape[0]) < stop - start
        is_markup = (answer == ord("<")) & inside
        is_hard = jnp.any(is_markup) | (stop - start > self._window)
        pieces, num_listed = byte_strings.rarely(
            is_hard,
            lambda _, parser, *answer: parser._read_whole(*answer),
            parsed,
            self,
            text,
            start,
            stop,
        )
        return ParsedAnswer(
            **pieces,
            num_names=jnp.minimum(num_listed, self.max_actions),
            num_listed=num_listed,
            has_format=has_format,
        )

    @property
    def _margin(self) -> int:
        """Cells after a text, so that a tag or name at its end can be compared."""
        return max(self.piece_bytes, *map(len, REMOVED))

    @property
    def _window(self) -> int:
        """Bytes of an answer read at once: twice a tidy answer with `A` names."""
        tidy = self.max_actions * (self.piece_bytes + len(b" || "))
        return min(2 * tidy, self.max_reply_tokens * self.token_bytes.shape[1])

    @property
    def _tail(self) -> int:
        return self._window + self._margin

    def _read_pieces(
        self, answer: UInt8[Array, " Y"], num_bytes: int, size: Int[Array, ""]
    ) -> tuple[Pieces, Int[Array, ""]]:
        """The pieces of `answer[:size]`, `size <= num_bytes`.

        Returns the fields of `ParsedAnswer` of those that count, and the number of all.
        """
        content, begins = _split(answer[:num_bytes], size)
        num_words = content.shape[0]

        def read(
            begins: UInt32[Array, " W"], _: None
        ) -> tuple[UInt32[Array, " W"], Pieces]:
            start = byte_strings.first(begins)
            later = begins & ~byte_strings.below(start + 1, num_words)
            # A piece ends at the last content before the next one begins. After the
            # last piece the size is not positive, which no action has.
            end = byte_strings.last(
                content & byte_strings.below(byte_strings.first(later), num_words)
            )
            piece = lax.dynamic_slice(answer, (start,), (self.piece_bytes,))
            return later, self._describe(piece, end - start + 1)

        # A scan is traced and compiled once for all pieces.
        _, pieces = lax.scan(read, begins, length=self.max_actions)
        return pieces, byte_strings.count(begins)

    def _read_whole(
        self,
        text: UInt8[Array, " N+tail"],
        start: Int[Array, ""],
        stop: Int[Array, ""],
    ) -> tuple[Pieces, Int[Array, ""]]:
        """`_read_pieces` of an answer of any length, with literals in it."""
        num_bytes = text.shape[0] - self._tail
        # Padded, since a slice that exceeds the text would begin too early.
        padded = jnp.pad(text, (0, num_bytes))
        answer = lax.dynamic_slice(padded, (start,), (num_bytes + self._margin,))
        answer, size = _remove_literals(answer, num_bytes, stop - start)
        return self._read_pieces(answer, num_bytes, size)

    def _describe(self, piece: UInt8[Array, " E"], size: Int[Array, ""]) -> Pieces:
        """Name or bytes of the piece `piece[:size]`; its size may exceed E."""
        is_padding = jnp.arange(piece.shape[0]) >= size
        if self.name_bytes is None:
            text = jnp.where(is_padding, jnp.uint8(0), piece)
            return {"texts": text, "sizes": jnp.maximum(size, 0)}
        piece = jnp.where(is_padding, 0, byte_strings.to_lower(piece))
        is_name = jnp.all(piece[None, :] == self.name_bytes, axis=1)
        is_name &= self.name_lengths == size
        index = jnp.max(jnp.where(is_name, jnp.arange(is_name.shape[0]), -1))
        return {"names": index}


def build_parser(
    tokenizer: HasTokenBytes,
    action_vocabulary: Sequence[str],
    *,
    max_actions_per_turn: int,
    max_reply_tokens: int,
    thinking: bool = True,
    answer_bytes: int = 0,
) -> AnswerParser:
    """Builds the tables of a parser.

    Args:
      tokenizer: its `token_bytes` gives the bytes of every id, b"" for special tokens.
      action_vocabulary: the names an action can have in any level.
      max_actions_per_turn: names of a reply that count.
      max_reply_tokens: tokens of a reply's array.
      thinking: a reply is a thought and an answer; False: an answer alone.
      answer_bytes: of the longest action of a game that reads answers itself; its
        vocabulary is empty. 0: actions have names.

    Raises:
      ValueError: a limit is not positive, or no reply could contain a name.
    """
    for limit, value in (
        ("max_actions_per_turn", max_actions_per_turn),
        ("max_reply_tokens", max_reply_tokens),
    ):
        if value < 1:
            raise ValueError(f"rollout.{limit} is {value}; it must be at least 1")
    name_table, name_lengths, piece_bytes = None, None, answer_bytes
    if not answer_bytes:
        names = _check_names(action_vocabulary)
        name_table, name_lengths = byte_strings.tabulate(names)
        piece_bytes = max(map(len, names))
    token_bytes = [
        byte_strings.shorten_token(token, longest_name=piece_bytes)
        for token in tokenizer.token_bytes
    ]
    token_table, token_lengths = byte_strings.tabulate([*token_bytes, b""])
    return AnswerParser(
        token_bytes=token_table,
        token_lengths=token_lengths,
        name_bytes=name_table,
        name_lengths=name_lengths,
        piece_bytes=piece_bytes,
        thinking=thinking,
        max_actions=max_actions_per_turn,
        max_reply_tokens=max_reply_tokens,
    )


def _check_names(action_vocabulary: Sequence[str]) -> list[bytes]:
    """The names as bytes in small letters; ValueError if no reply can contain one."""
    names = [name.encode().lower() for name in action_vocabulary]
    if not names:
        raise ValueError("the action vocabulary is empty; name at least one action")
    for index, name in enumerate(names):
        given = action_vocabulary[index]
        if not name or name != name.strip() or re.search(rb"[<>|\0]", name):
            raise ValueError(
                f"the action name {given!r} cannot be found in a reply: a name must "
                "not be empty, begin or end with white space, or contain < > | or NUL"
            )
        if not unicodedata.is_normalized("NFC", given):
            raise ValueError(
                f"the action name {given!r} has a letter and its mark as two "
                "characters; write them as one (NFC), as tokenizers do, for replies to "
                "equal it"
            )
        if name in names[:index]:
            raise ValueError(
                f"the action name {given!r} appears twice in the vocabulary; names "
                "must differ in more than capital letters"
            )
    return names


def _find_answer(
    text: UInt8[Array, " Y"], num_bytes: int
) -> tuple[Bool[Array, ""], Int[Array, ""], Int[Array, ""]]:
    """Whether the text has the form, and the answer's first byte and the one after it.

    These are of the first `</think>` that is followed by an `<answer>`, and of the
    first `</answer>` after both. Without such an `</answer>` no later pair of tags
    would have one either, so that no other pair needs to be tried. 0, 0 without an
    answer.
    """
    begins, ends_thought, ends = (
        byte_strings.pack(byte_strings.find(text, tag, num_bytes))
        for tag in (ANSWER_BEGIN, THINK_END, ANSWER_END)
    )
    # White space between the tags, skipped without a loop: added to a run of set bits,
    # a bit at its beginning carries through it into the first clear bit after it. The
    # runs are white space, the added bits follow each `</think>`; answers begin where
    # the carries end.
    white = byte_strings.pack(byte_strings.is_white(text[:num_bytes]))
    after_thought = byte_strings.raised(ends_thought, len(THINK_END))
    reached = byte_strings.add(white, after_thought) & ~white
    start = byte_strings.first(begins & reached) + len(ANSWER_BEGIN)
    ends &= ~byte_strings.below(start, ends.shape[0])
    has_format = jnp.any(ends != 0)
    zero = jnp.zeros_like(start)
    return (
        has_format,
        jnp.where(has_format, start, zero),
        jnp.where(has_format, byte_strings.first(ends), zero),
    )


def _find_answer_alone(
    text: UInt8[Array, " Y"], num_bytes: int
) -> tuple[Bool[Array, ""], Int[Array, ""], Int[Array, ""]]:
    """`_find_answer` without a thought: the forced prefix has begun the answer."""
    ends = byte_strings.pack(byte_strings.find(text, ANSWER_END, num_bytes))
    has_format = jnp.any(ends != 0)
    zero = jnp.zeros((), jnp.int32)
    return has_format, zero, jnp.where(has_format, byte_strings.first(ends), zero)


def _remove_literals(
    answer: UInt8[Array, " Y"], num_bytes: int, size: Int[Array, ""]
) -> tuple[UInt8[Array, " Y"], Int[Array, ""]]:
    """Deletes the literals of `REMOVED` from `answer[:size]`, one after the other."""
    literals, widths = byte_strings.tabulate(REMOVED)

    def remove(
        state: tuple[UInt8[Array, " Y"], Int[Array, ""]],
        starts: Bool[Array, " X"],
        width: Int[Array, ""],
    ) -> tuple[UInt8[Array, " Y"], Int[Array, ""]]:
        text, size = state
        count = jnp.sum(starts, dtype=size.dtype)
        longest = literals.shape[1]
        text = byte_strings.remove(text, starts, width, max_width=longest)
        return text, size - count * width

    def remove_next(
        i: Int[Array, ""], state: tuple[UInt8[Array, " Y"], Int[Array, ""]]
    ) -> tuple[UInt8[Array, " Y"], Int[Array, ""]]:
        text, size = state
        width = widths[i]
        starts = byte_strings.find_row(text, literals[i], num_bytes)
        # `<` is only at the front of a literal, so its occurrences never overlap.
        starts &= jnp.arange(num_bytes) + width <= size
        return byte_strings.rarely(jnp.any(starts), remove, state, starts, width)

    return lax.fori_loop(0, len(REMOVED), remove_next, (answer, size))


def _split(
    text: UInt8[Array, " X"], size: Int[Array, ""]
) -> tuple[UInt32[Array, " W"], UInt32[Array, " W"]]:
    """Cells of `text[:size]` with content, and those of them that begin a piece.

    In a run of bars, the first and second make a separator, the third and fourth, and
    so on; the last of an odd run is content, as in a split from the left. All runs are
    handled at once, in a fixed number of operations on words.
    """
    bars = byte_strings.pack(text == SEPARATOR[0])
    inside = byte_strings.below(size, bars.shape[0])
    bars &= inside
    # Which bars are the second, fourth, ... of their run? In a run that begins at an
    # even cell those at odd cells, and vice versa. To find the runs that begin at even
    # cells, add their beginnings: the carry clears exactly the bars of these runs.
    begins_run = bars & ~byte_strings.raised(bars, 1)
    of_even_run = bars & ~byte_strings.add(bars, begins_run & byte_strings.EVEN)
    of_odd_run = bars & ~of_even_run
    ends_separator = (of_even_run & ~byte_strings.EVEN) | (
        of_odd_run & byte_strings.EVEN
    )
    separators = ends_separator | byte_strings.lowered(ends_separator, 1)
    white = byte_strings.pack(byte_strings.is_white(text))
    content = inside & ~white & ~separators
    # Added to the cells without content, a bit at the start of the text and one at the
    # end of each separator carry through white space and further separators. Where they
    # come to rest on content, a piece begins; pieces of white space alone have none.
    begins_piece = content & byte_strings.add(~content, ends_separator, carry=True)
    return content, begins_piece
