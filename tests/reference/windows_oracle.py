"""Windows of a dialogue, written out by hand: strings, and the ids of replies.

A window is a list of pieces, each a string or a list of recorded ids. Strings that
follow each other are one string to the tokenizer.
"""

import dataclasses
import functools
import itertools

USER = "<|im_start|>user\n"


@dataclasses.dataclass
class Told:
    """One turn, as it was told.

    Attributes:
      opening: text of a dialogue that begins with this turn.
      state: text of the game's state.
      message: ids of the turn's message in the dialogue.
      turn: from 1.
      actions_left: before the turn.
      reply: ids.
      was_stopped: the last of them is a stop token.
      last: what the turn brought, fields of the next message.
    """

    opening: str
    state: str
    message: list[int]
    turn: int
    actions_left: int
    reply: list[int] | None = None
    was_stopped: bool | None = None
    last: dict | None = None

    @property
    def reward(self) -> str:
        return f"{self.last['reward_hundredths'] / 100:g}"


@dataclasses.dataclass
class Window:
    """Ids and text of a prompt, ids of the reply to it."""

    ids: list[int]
    text: str
    reply: list[int] | None = None


def join(pieces, tokenizer) -> Window:
    """Tokenizes what is text."""
    ids, text = [], b""
    for is_text, run in itertools.groupby(pieces, lambda p: isinstance(p, str)):
        if is_text:
            written = "".join(run)
            ids += tokenizer.encode(written)
            text += written.encode()
        else:
            for recorded in run:
                ids += recorded
                text += spell(recorded, tokenizer)
    return Window(ids, text.decode(errors="replace"))


def spell(ids, tokenizer) -> bytes:
    """What ids spell, special tokens included, unused ones left out."""
    spelled = tokenizer.token_bytes
    shown = [
        spelled[i] or (tokenizer.backend.id_to_token(i) or "").encode()
        for i in ids
        if i < len(spelled)
    ]
    return b"".join(shown)


def last_k(told, turns):
    """The dialogue as if it had begun `turns` turns ago."""
    first, *others = told[-turns:]
    pieces = [first.opening]
    for before, turn in itertools.pairwise([first, *others]):
        pieces += [before.reply, turn.message]
    return pieces


def single_turn(told, turns, *, style):
    """One message: system, the earlier turns, this turn."""
    *past, now = told[-turns:]
    system, request = now.opening.split(USER)
    pieces = [system, USER]
    if past and style == "full":
        pieces.append("Your last turns, the oldest first:\n")
    for turn in past:
        reply = turn.reply[:-1] if turn.was_stopped else turn.reply
        before, after = PAST[style](turn)
        pieces += [before, reply, after]
    if past and style == "full":
        pieces.append("Your turn now:\n")
    return [*pieces, request]


def _full(turn):
    before = f"Turn {turn.turn}\nState:\n{turn.state}Your reply: <think>"
    after = f"\nReward: {turn.reward}\n"
    if turn.last["was_invalid"]:
        after += "That reply held no valid action, so nothing happened.\n"
    return before, after


def _terse(turn):
    left = turn.actions_left
    before = f"Turn {turn.turn}\n{turn.state}Left {left}\n<think>"
    after = f"\nReward {turn.reward}\n"
    if turn.last["was_invalid"]:
        after += "Invalid\n"
    return before, after


PAST = {"full": _full, "terse": _terse}


def writer(context, turns, style):
    """`write_window` of the slow loop."""
    if context == "full":
        return None
    if context == "last_k":
        return functools.partial(last_k, turns=turns)
    return functools.partial(single_turn, turns=turns, style=style)
