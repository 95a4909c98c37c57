"""An episode of a program: its calls wait here for their answers.

In: a program that runs. Out: its calls, one at a time, and how it ended. The threads of
the server ask, the game answers. Calls that wait together are taken in the order of
their contents, so that the order does not depend on which thread was faster.
"""

import json
import threading
from collections.abc import Callable
from http import HTTPStatus

from ragen_jax.host_games.agent.calls import CallRefused, ChatAnswer, ChatCall
from ragen_jax.host_games.agent.program import Ended, Run

# Code of the refusal after which no call of the episode is answered.
BUDGET_EXHAUSTED = "budget_exhausted"


class _Asked:
    """A call, and its answer once there is one."""

    def __init__(self, call: ChatCall):
        self.call = call
        self.answer: ChatAnswer | CallRefused | None = None

    @property
    def order(self) -> str:
        return json.dumps(self.call.to_json(), sort_keys=True)


class Episode:
    """The calls of an episode.

    Attributes:
      transcript: calls and their answers so far.
      was_refused: the last call was refused.
    """

    def __init__(self):
        self.transcript: list[tuple[ChatCall, ChatAnswer]] = []
        self.was_refused = False
        self._moved = threading.Condition()
        self._waiting: list[_Asked] = []
        self._shown: _Asked | None = None
        self._ended: Ended | None = None
        # Why no call is answered any more.
        self._closed: CallRefused | None = None
        self._run: Run | None = None

    def start(self, run: Callable[[Callable[[Ended], None]], Run]) -> None:
        """Start the program; `run(when_ended)` does."""
        self._run = run(self._end)

    def ask(self, call: ChatCall) -> ChatAnswer:
        """Wait for the answer to a call; for the threads of the server.

        Raises:
          CallRefused: it is not answered.
        """
        asked = _Asked(call)
        with self._moved:
            if self._closed is None:
                self._waiting.append(asked)
                self._moved.notify_all()
            self._moved.wait_for(lambda: asked.answer is not None or self._closed)
            answer = asked.answer or self._closed
        if isinstance(answer, CallRefused):
            # One exception for each thread.
            raise CallRefused(str(answer), answer.status, answer.code)
        return answer

    def next_call(self) -> ChatCall | Ended:
        """Wait for the next call, or for the end of the program."""
        with self._moved:
            self._moved.wait_for(lambda: self._ended is not None or self._waiting)
            if self._ended is not None:
                return self._ended
            self._shown = min(self._waiting, key=lambda asked: asked.order)
            self._waiting.remove(self._shown)
            return self._shown.call

    def answer(self, answer: ChatAnswer | CallRefused) -> None:
        """Answer the call that `next_call` gave last."""
        with self._moved:
            self.was_refused = isinstance(answer, CallRefused)
            self._shown.answer = answer
            if not self.was_refused:
                self.transcript.append((self._shown.call, answer))
            elif answer.code == BUDGET_EXHAUSTED:
                self._closed = answer
            self._moved.notify_all()

    def end(self, seconds: float) -> bool:
        """Answer no more calls, and wait for the program's end; whether it came."""
        with self._moved:
            if self._closed is None:
                self._closed = CallRefused(
                    "the episode is over; return from it", HTTPStatus.GONE, "over"
                )
            self._moved.notify_all()
        # A command that cannot be started has no run.
        return self._run is None or self._run.end(seconds)

    def _end(self, ended: Ended) -> None:
        with self._moved:
            self._ended = ended
            self._moved.notify_all()
