"""Placements of digits, read from texts.

In: bytes. Out: row, column and digit. Knows no board.

Where `n` is the digit, `r` the row and `c` the column, each one decimal digit, the
texts are

    place n at row r col c
    place n at (r,c)
    place n at r,c
    n at r,c
    (r,c,n)
    r,c,n

in letters of any case. Blanks and tabs may stand between words, digits and signs, and
one at least must between two that are both words or digits. Nothing else is a
placement.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt8

# The texts without spare blanks, and where each has row, column and digit.
FORMS = {
    "place n at row n col n": (1, 2, 0),
    "place n at(n,n)": (1, 2, 0),
    "place n at n,n": (1, 2, 0),
    "n at n,n": (1, 2, 0),
    "(n,n,n)": (0, 1, 2),
    "n,n,n": (0, 1, 2),
}
# States of the automaton: nothing read yet, and not the beginning of any form.
_BEGIN, _DEAD = 0, 1


def read_placement(
    text: UInt8[Array, " bytes"], size: Int[Array, ""]
) -> tuple[Int[Array, ""], Int[Array, ""], Int[Array, ""]]:
    """Row, column and digit in a text, from 0 to 9; all -1 if it is not a placement.

    Args:
      text: bytes; those from `size` on do not count.
      size: length of the text.
    """
    table, places = _automaton()
    classes, is_word = _byte_classes()
    is_inside = jnp.arange(text.shape[0], dtype=jnp.int32) < size
    codes = jnp.where(is_inside, text.astype(jnp.int32), ord(" "))
    blank = classes[ord(" ")]

    def read(carry, code):
        state, follows_word, follows_blank, count, numbers = carry
        kind, in_word = jnp.asarray(classes)[code], jnp.asarray(is_word)[code]
        # Blanks are skipped, except the one between two words: the automaton reads that
        # one when the second word begins.
        needs_blank = follows_word & follows_blank & in_word
        spaced = jnp.where(needs_blank, jnp.asarray(table)[state, blank], state)
        is_blank = kind == blank
        state = jnp.where(is_blank, state, jnp.asarray(table)[spaced, kind])
        is_digit = kind == classes[ord("0")]
        numbers = jnp.where(
            is_digit & (jnp.arange(3) == count), code - ord("0"), numbers
        )
        follows_word = jnp.where(is_blank, follows_word, in_word)
        return (
            (
                state,
                follows_word,
                is_blank,
                count + is_digit.astype(jnp.int32),
                numbers,
            ),
            None,
        )

    no, nothing = jnp.bool_(False), jnp.full(3, -1, jnp.int32)
    start = (jnp.int32(_BEGIN), no, no, jnp.int32(0), nothing)
    state, _, _, _, numbers = jax.lax.scan(read, start, codes)[0]
    place = jnp.asarray(places)[state]
    row, col, digit = (
        jnp.sum(jnp.where(jnp.arange(3) == place[i], numbers, 0)) for i in range(3)
    )
    is_form = place[0] >= 0
    row, col, digit = (jnp.where(is_form, x, -1) for x in (row, col, digit))
    return row, col, digit


@functools.cache
def _byte_classes() -> tuple[np.ndarray, np.ndarray]:
    """The automaton's column of every byte, and whether the byte occurs in words."""
    classes, is_word = np.full(256, len(_alphabet()), np.int32), np.zeros(256, bool)
    for i, character in enumerate(_alphabet()):
        # Every digit counts as `n`, a letter that the forms use for digits only.
        spelled = "0123456789" if character == "n" else {character, character.upper()}
        for code in map(ord, spelled):
            classes[code] = i
            is_word[code] = character.isalpha()
    classes[ord("\t")] = classes[ord(" ")]
    return classes, is_word


@functools.cache
def _alphabet() -> str:
    return "".join(sorted(set("".join(FORMS))))


@functools.cache
def _automaton() -> tuple[np.ndarray, np.ndarray]:
    """The next state by state and class of byte, and per state where its numbers are.

    A state is a beginning of a form; the last class is that of all other bytes. Places
    are -1 in states that are not a whole form.
    """
    begun = {form[:i] for form in FORMS for i in range(1, len(form) + 1)}
    states = ["", None, *sorted(begun)]
    table = np.full((len(states), len(_alphabet()) + 1), _DEAD, np.int32)
    places = np.full((len(states), 3), -1, np.int32)
    for i, text in enumerate(states):
        if text is None:
            continue
        for j, character in enumerate(_alphabet()):
            if text + character in begun:
                table[i, j] = states.index(text + character)
        places[i] = FORMS.get(text, (-1, -1, -1))
    return table, places
