"""Who else plays TextArena's games: the opponent, and who demonstrates.

In: what the game has said to a side. Out: a reply, as the policy would give one. Random
legal moves, a function of the user's, or, as the opponent, a model behind an API.

A legal move is one that a copy of the game does not refuse, so that the rules are
TextArena's alone.
"""

import abc
import dataclasses
import random
import re
from collections.abc import Callable
from typing import Any

from ragen_jax.host_games.adapters.textarena_games import Game, Moves
from ragen_jax.host_games.common.http import check_url, post_json
from ragen_jax.host_games.common.options import check_number, refuse_given
from ragen_jax.host_games.common.references import load_function

RANDOM = "random"
# Of a model that has to answer.
OPPONENT_SECONDS = 30.0
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)


# Fields of a message in which servers put the thought.
_THOUGHTS = ("reasoning_content", "reasoning")


class OpponentError(RuntimeError):
    """An opponent has given no reply; the message says how."""


@dataclasses.dataclass(frozen=True)
class Position:
    """What a player knows when it has to reply.

    Attributes:
      told: by the game to its side since its last reply.
      said: by the game to its side in this episode, `told` at the end.
      env: the game itself; only those that play at random look into it.
      is_legal: whether a copy of the game takes a reply.
    """

    told: str
    said: str
    env: Any
    is_legal: Callable[[str], bool]


class Opponent(abc.ABC):
    """Replies for a side: the other one, or for a demonstration the policy's.

    Attributes:
      waits: for another machine.
      max_reply_seconds: after which it has failed to reply; None: no limit.
    """

    waits = False
    max_reply_seconds: float | None = None

    @abc.abstractmethod
    def reset(self, seed: int) -> None:
        """Begin an episode."""

    @abc.abstractmethod
    def reply(self, position: Position) -> str:
        """What it says to the game."""


class RandomOpponent(Opponent):
    """Any legal move, each as probable as any other.

    Where no move is legal it gives one that is not: the game decides what that means.
    """

    def __init__(self, moves: Moves):
        self._moves = moves

    def reset(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def reply(self, position: Position) -> str:
        # The first legal one of an order that is drawn.
        moves = list(self._moves(position.env, position.told, self._draw))
        self._draw.shuffle(moves)
        return next(filter(position.is_legal, moves), moves[0] if moves else "")


class ScriptedOpponent(Opponent):
    """A function of the user's: all that was said to its side in, a reply out.

    Args:
      option: that names it.
      reference: package.module:function.
    """

    def __init__(self, option: str, reference: str):
        if ":" not in str(reference):
            raise ValueError(
                f"{option} is {reference!r}; use {RANDOM} or package.module:function"
            )
        self._option, self._reference = option, reference
        self._function = load_function(option, reference)

    def reset(self, seed: int) -> None:
        """The function remembers nothing: all it needs is in what was said."""

    def reply(self, position: Position) -> str:
        reply = self._function(position.said)
        if not isinstance(reply, str):
            raise OpponentError(
                f"{self._option} {self._reference} returned "
                f"{type(reply).__name__}; it must return a text"
            )
        return reply


class ModelOpponent(Opponent):
    """A model behind an API like OpenAI's.

    It gets the instruction, then what the game says, in turn with its own replies. Its
    move is the text between the last tags of an answer, else all that follows its
    thoughts. The seed of the episode is sent: whether the same one gives the same
    replies is the server's business.
    """

    waits = True

    def __init__(self, url: str, model: str, *, instruction: str, seconds: float):
        """Notes where the model is; nothing is sent before its first turn.

        Args:
          url: without /chat/completions.
          model: its name there.
          instruction: said before everything.
          seconds: in which it must answer.
        """
        check_url("opponent_url", url)
        check_number("opponent_seconds", seconds, above=0)
        self._url = url.rstrip("/") + "/chat/completions"
        self._model, self.max_reply_seconds = model, seconds
        self._instruction = (
            f"{instruction}\nWrite your reply to the game between <answer> and "
            "</answer>."
        )

    def reset(self, seed: int) -> None:
        self._seed = seed
        self._messages = [{"role": "system", "content": self._instruction}]

    def reply(self, position: Position) -> str:
        self._messages.append({"role": "user", "content": position.told})
        answer = post_json(
            self._url,
            {"model": self._model, "messages": self._messages, "seed": self._seed},
            timeout_seconds=self.max_reply_seconds,
        )
        try:
            message = answer["choices"][0]["message"]
            text = message["content"]
            if isinstance(text, list):
                # In parts, of which thoughts have another type.
                text = "".join(part.get("text") or "" for part in text)
            elif text is None and any(map(message.get, _THOUGHTS)):
                # A server that takes thoughts out, and one that was cut.
                text = ""
        except (LookupError, TypeError, AttributeError) as error:
            raise OpponentError(
                f"{self._url} answered {str(answer)[:80]}, which is not a chat "
                "completion; check that opponent_url is right"
            ) from error
        if not isinstance(text, str):
            raise OpponentError(
                f"{self._url} answered with {type(text).__name__} for a text; use a "
                "model that replies with text"
            )
        self._messages.append({"role": "assistant", "content": text})
        return read_answer(text)


def read_answer(text: str) -> str:
    """What a model's reply says to the game."""
    said = text.rpartition("</think>")[2]
    answers = _ANSWER.findall(said)
    return (answers[-1] if answers else said).strip()


def build_opponent(
    id: str,
    game: Game,
    *,
    player: int | str,
    opponent: str | None,
    opponent_url: str | None,
    opponent_model: str | None,
    opponent_seconds: float | None,
    instruction: str,
) -> Opponent | None:
    """The opponent that the options of `TextArenaGame` describe; None for one player.

    Raises:
      ValueError: they contradict each other, or the game has no random moves.
    """
    if game.num_players == 1:
        refuse_given(
            f"but {id} is for one player; choose another game",
            opponent=opponent,
            opponent_url=opponent_url,
            opponent_model=opponent_model,
            opponent_seconds=opponent_seconds,
        )
        if player != 0:
            raise ValueError(f"player is {player!r}, but {id} is for one; use 0")
        return None
    if opponent_url is not None:
        refuse_given("beside opponent_url; give one of them", opponent=opponent)
        if not isinstance(opponent_model, str) or not opponent_model:
            raise ValueError(
                f"opponent_model is {opponent_model!r}; give the name that the model "
                "has at opponent_url"
            )
        seconds = OPPONENT_SECONDS if opponent_seconds is None else opponent_seconds
        return ModelOpponent(
            opponent_url, opponent_model, instruction=instruction, seconds=seconds
        )
    refuse_given(
        "without opponent_url; give the address of its API",
        opponent_model=opponent_model,
        opponent_seconds=opponent_seconds,
    )
    if opponent is not None and opponent != RANDOM:
        return ScriptedOpponent("opponent", opponent)
    if game.moves is None:
        raise ValueError(
            f"opponent is {RANDOM!r}, but moves of {id} are words that cannot be "
            "listed; use package.module:function, or opponent_url and opponent_model"
        )
    return RandomOpponent(game.moves)


def build_expert(
    id: str, game: Game, expert: str | None, opponent_url: str | None
) -> Opponent | None:
    """Who demonstrates.

    Raises:
      ValueError: it is no such function, the game has no random moves, or its
        demonstrations are of no use.
    """
    if expert is None:
        return None
    if opponent_url is not None:
        raise ValueError(
            f"expert is {expert!r} beside opponent_url, whose model need not repeat "
            "its replies; leave it out"
        )
    if expert != RANDOM:
        return ScriptedOpponent("expert", expert)
    if game.moves is None:
        raise ValueError(
            f"expert is {RANDOM!r}, but moves of {id} are not listed; use "
            "package.module:function"
        )
    return RandomOpponent(game.moves)
