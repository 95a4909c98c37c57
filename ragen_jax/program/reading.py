"""Whether a built-in model can read a game: a note for games in other words.

In: tasks and the tokenizer of a built-in model. Out: a sentence per task whose words
the model has not learned, or none.

A built-in model's tokenizer has one token for each common word of its training
(`ragen_jax/sft/pocket_tokenizer.py`). Any other word is spelled in bytes, which the
model has hardly met as letters: it neither reads nor writes such a word until it is
fine-tuned on the game.
"""

import contextlib
import re
import sys
from collections.abc import Iterable, Sequence

from envs.base import TRAINING, TextGame
from ragen_jax.devices import exchange
from ragen_jax.rollout.host.env import HostGameEnv
from ragen_jax.rollout.host.rows import Pool
from ragen_jax.terminal import say
from ragen_jax.text.tokenizer import Tokenizer

# Two letters or more; single ones are symbols of boards.
_WORD = re.compile(r"[^\W\d_]{2,}")
# Share of the words of a game above which it is said to be unreadable. The built-in
# games that a built-in model was trained on have at most 1 of 11, an invented name.
MOST_UNREAD = 0.5
NUM_EXAMPLES = 4
CURE = (
    "fine-tune it on demonstrations of the game first (docs/warm-start.md), or train a "
    "real model, e.g. --config=FILE:qwen2.5-0.5b"
)
CURE_OF_SEEING = CURE.replace("qwen2.5-0.5b", "qwen2.5-vl-3b")
CURE_OF_TUNING = (
    "these demonstrations have to teach it to spell; a real model reads at once, e.g. "
    "--config=FILE:qwen2.5-0.5b"
)


def warn_of_unread_words(
    games: Iterable[TextGame], tokenizer: Tokenizer, cure: str = CURE
) -> None:
    """Say on standard error which games a built-in model cannot read.

    Args:
      games: that it is to play.
      tokenizer: of the built-in model.
      cure: what to do.
    """
    # Once for all processes: asking a host game starts a worker.
    if not exchange.is_first():
        return
    for env in games:
        if note := unread_note(env, [tokenizer], cure):
            say(f"note: {note}", sys.stderr)


def unread_note(env: TextGame, tokenizers: Sequence[Tokenizer], cure: str) -> str:
    """A sentence if no model can read a game and write its actions, else empty."""

    def unread_of(texts):
        return min((unread_words(texts, t) for t in tokenizers), key=len)

    unread = unread_of(env.action_vocabulary)
    if unread:
        subject = f"the actions of {env.name}"
    else:
        texts = shown_texts(env)
        unread = unread_of(texts)
        if len(unread) <= MOST_UNREAD * len(_words(texts)):
            return ""
        subject = f"the first texts of {env.name}"
    examples = ", ".join(unread[:NUM_EXAMPLES])
    more = ", ..." if len(unread) > NUM_EXAMPLES else ""
    return (
        f"{subject} have words that the built-in model has not learned "
        f"({examples}{more}): {cure}"
    )


def unread_words(texts: Iterable[str], tokenizer: Tokenizer) -> list[str]:
    """Words that no token stands for, alone or after a blank, by first appearance."""
    return [
        word
        for word in _words(texts)
        if all(len(tokenizer.encode(begin + word)) > 1 for begin in ("", " "))
    ]


def shown_texts(env: TextGame) -> Sequence[str]:
    """Texts of a game's states: all of an array game, one problem's of a host game.

    None of a game that cannot begin, which a run reports itself, and of one whose
    sessions are counted elsewhere.
    """
    if not isinstance(env, HostGameEnv):
        return env.template.texts
    if env.max_rows is not None:
        return []
    task = None if env.num_tasks[TRAINING] is None else 0
    with contextlib.closing(Pool(env.spec, TRAINING)) as games:
        (first,) = games.reset([0], [task])
    return [] if first.failure is not None else [first.text]


def _words(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(word for text in texts for word in _WORD.findall(text)))
