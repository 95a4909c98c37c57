"""Sessions: who plays what, how many at once, and since when nothing has been said.

In: messages of a client. Out: the answer to each. Knows no sockets.
"""

import logging
import math
import secrets
import threading
import time
import uuid
from typing import Any

from ragen_jax.serve import protocol
from ragen_jax.serve.games import Game, GameError, Player, SessionOutput
from ragen_jax.serve.protocol import Code, MessageError

logger = logging.getLogger(__name__)


class Session:
    """The episodes of one client, one after the other; used by one thread at a time.

    Attributes:
      last_used: `time.monotonic()` of the last answer.
      num_answered: messages so far.
    """

    def __init__(self, player: Player):
        self._player = player
        self._state: dict[str, Any] = {
            "episode_id": None,
            "step_count": 0,
            "seed": None,
            "split": None,
            "task": None,
            "done": False,
        }
        self.last_used, self.num_answered = time.monotonic(), 0

    def answer(self, raw: str | bytes) -> str | None:
        """The answer to a message; None where it asks to close."""
        try:
            return self._answer(protocol.read_message(raw))
        except MessageError as error:
            return protocol.write("error", protocol.error_data(error))
        finally:
            self.last_used = time.monotonic()
            self.num_answered += 1

    def reset(self, asked: protocol.Reset) -> dict[str, Any]:
        """Begin an episode; returns the data of the answer.

        Raises:
          MessageError: it cannot begin.
        """
        seed = asked.seed
        if seed is None:
            seed = secrets.randbelow(protocol.MAX_SEED + 1)
        # Until the game has answered there is no episode.
        self._state.update(episode_id=None, step_count=0, done=False)
        outcome = self._play(lambda: self._player.reset(seed, asked.task, asked.split))
        episode_id = asked.episode_id
        if episode_id is None:
            episode_id = uuid.uuid4().hex
        problem = {"seed": seed, "split": asked.split, "task": asked.task}
        self._state.update(problem, episode_id=episode_id)
        ignored = {"ignored": list(asked.ignored)} if asked.ignored else {}
        about = problem | {"episode_id": episode_id} | ignored
        return observation_data(outcome) | {"metadata": about}

    def step(self, asked: protocol.Step) -> dict[str, Any]:
        """Answer in the episode; returns the data of the answer.

        Raises:
          MessageError: there is no episode, or the game failed, which ends it.
        """
        if self._state["episode_id"] is None or self._state["done"]:
            why = "is over" if self._state["done"] else "has not begun"
            raise MessageError(
                Code.EXECUTION_ERROR, f"the episode {why}; send a reset first"
            )
        try:
            outcome = self._play(lambda: self._player.step(asked.answer))
        except MessageError:
            self._state["done"] = True
            raise
        self._state["step_count"] += 1
        self._state["done"] = outcome.done
        return observation_data(outcome)

    def state(self) -> dict[str, Any]:
        """The data of a state."""
        return dict(self._state)

    def close(self) -> None:
        """Release what the client's game holds."""
        self._player.close()

    def _answer(self, request: protocol.Request) -> str | None:
        match request:
            case protocol.Reset():
                return protocol.write("observation", self.reset(request))
            case protocol.Step():
                return protocol.write("observation", self.step(request))
            case protocol.GetState():
                return protocol.write("state", self.state())
            case protocol.Mcp():
                return protocol.write("mcp", protocol.answer_mcp(request.request))
            case protocol.Close():
                return None

    def _play(self, call) -> SessionOutput:
        try:
            output = call()
        except GameError as error:
            raise MessageError(Code.EXECUTION_ERROR, str(error)) from error
        except Exception as error:
            # A fault of a game must not end the server; the log has the traceback.
            logger.exception("A game failed")
            words = f"the game failed: {type(error).__name__}: {error}"
            raise MessageError(Code.EXECUTION_ERROR, words) from error
        # JSON has no other numbers.
        if output.reward is not None and not math.isfinite(output.reward):
            words = f"the game failed: its reward is {output.reward}"
            raise MessageError(Code.EXECUTION_ERROR, words)
        return output


def observation_data(outcome: SessionOutput) -> dict[str, Any]:
    """The data of an observation message."""
    observation = {
        name: getattr(outcome, name)
        for name in ("text", "shown", "success", "valid", "truncated")
    }
    if outcome.images:
        observation["images"] = list(outcome.images)
    return {"observation": observation, "reward": outcome.reward, "done": outcome.done}


class Sessions:
    """The sessions of a server.

    Args:
      game: that all of them play.
      limit: of sessions at once.
    """

    def __init__(self, game: Game, limit: int):
        self.game, self.limit = game, limit
        self._free = threading.Condition()
        self._num_open = 0

    @property
    def num_open(self) -> int:
        """Sessions at present."""
        return self._num_open

    def open(self) -> Session:
        """A session; `close` frees its place.

        Raises:
          MessageError: all places are taken.
        """
        with self._free:
            if self._num_open >= self.limit:
                raise MessageError(
                    Code.CAPACITY_REACHED,
                    f"Server at capacity: {self._num_open} of {self.limit} sessions "
                    "are in use; close one, or start the server with more "
                    "(--max_sessions)",
                    active_sessions=self._num_open,
                    max_sessions=self.limit,
                )
            self._num_open += 1
        try:
            return Session(self.game.player())
        except BaseException:
            self._leave()
            raise

    def close(self, session: Session) -> None:
        """End a session."""
        try:
            session.close()
        finally:
            self._leave()

    def wait_closed(self, seconds: float) -> bool:
        """Wait until there is no session; False if some are left."""
        with self._free:
            return self._free.wait_for(lambda: self._num_open == 0, seconds)

    def _leave(self) -> None:
        with self._free:
            self._num_open -= 1
            self._free.notify_all()
