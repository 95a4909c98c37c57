"""Play any game behind an OpenEnv server, over its WebSocket.

In: the server's URL and options. Out: a `HostGame`. Its rules, its problems and its
rewards are the server's. Needs the package websockets.

Where this differs from clients of OpenEnv: the server's stateless `POST /step` is not
used, a connection that is lost inside an episode is an error and never a new episode,
and what ends an episode with a positive reward counts as a success unless the server
says what does (`success` in its observation, as `launch.serve` does).
"""

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ragen_jax.host_games.adapters.common import refuse_reply, spread_seed
from ragen_jax.host_games.adapters.openenv_actions import (
    Unreadable,
    find_images,
    find_text,
    read_flag,
    read_form,
    read_reward,
)
from ragen_jax.host_games.adapters.openenv_connection import (
    ActionRefused,
    Connection,
    OpenEnvError,
    check_installed,
    fetch_document,
    server_urls,
)
from ragen_jax.host_games.base import HostGame, Observation, Step
from ragen_jax.host_games.common.options import check_number
from ragen_jax.host_games.common.splits import check_split

# Of the description that becomes the instruction: it is in every prompt.
MAX_INSTRUCTION = 4_000

Value = TypeVar("Value")


class OpenEnvGame(HostGame):
    """A game behind an OpenEnv server; each game has a separate session there."""

    def __init__(
        self,
        split: str,
        url: str,
        *,
        instruction: str | None = None,
        field: str | None = None,
        observation_field: str | None = None,
        images: bool | None = None,
        success_above: float = 0.0,
        timeout_seconds: float = 8.0,
    ):
        """Ask the server what it plays; the session begins with the first episode.

        Args:
          split: sent with every reset as `split`, which servers that do not know it
            ignore; also, training has the even seeds and validation the odd ones.
          url: of the server, ws://HOST:PORT.
          instruction: what the model reads about the game; None: the server's name and
            description.
          field: of the action, where every reply goes as it is; None: a reply that is
            a JSON object is the action, and any other the value of the only required
            field.
          observation_field: with the text; None: the first of those usual.
          images: those of observations are shown, too, to models behind an API; False:
            their text alone. None: an observation with images ends the episode.
          success_above: an episode that ends with a last reward above this is a
            success, where the server does not say.
          timeout_seconds: for each answer. Below `host.step_seconds`, so that an error
            says what happened.

        Raises:
          ValueError: an option is wrong, websockets is not installed, or the server
            does not say what it plays.
        """
        check_split(split)
        check_number("timeout_seconds", timeout_seconds, above=0)
        check_installed()
        socket_url, pages_url = server_urls(url)
        try:
            schema = fetch_document(f"{pages_url}/schema", timeout_seconds)
            about = _about(pages_url, timeout_seconds, is_needed=instruction is None)
        except OpenEnvError as error:
            raise ValueError(str(error)) from error
        self._form = read_form(schema.get("action"), field)
        self.instruction = instruction or _describe(about, self._form.hint)
        self._split, self._observation_field = split, observation_field
        self._success_above, self._images = success_above, images
        self.waits, self.max_step_seconds = True, timeout_seconds
        # Servers of ragen_jax say how many sessions they have.
        most = about.get("max_sessions")
        self.max_rows = most if type(most) is int and most > 0 else None
        self._connection = Connection(socket_url, timeout_seconds)

    def reset(self, seed: int, task: int | None = None) -> Observation:
        """Begin an episode.

        Args:
          seed: from 0; the server gets an even one in training, an odd one in
            validation.
          task: sent as `task`, for servers that have numbered problems.

        Raises:
          OpenEnvError: it has not begun.
        """
        data = {
            "seed": spread_seed(self._split, seed),
            "split": self._split,
        }
        if task is not None:
            data["task"] = task
        answer = self._connection.reset(data)
        if self._flag(answer, "done"):
            raise self._given_up("the episode is over before its first reply")
        return self._find(answer)

    def step(self, reply: str) -> Step:
        """Send a reply.

        Raises:
          OpenEnvError: the episode is lost.
        """
        try:
            answer = self._connection.step(self._form.read(reply))
        except Unreadable as error:
            return self._invalid(str(error))
        except ActionRefused as error:
            return self._invalid(f"The game did not accept this: {error}")
        observation = self._find(answer)
        reward = self._read(read_reward, answer.get("reward"))
        done = self._flag(answer, "done")
        seen = answer.get("observation")
        seen = seen if isinstance(seen, Mapping) else {}
        is_won = done and reward > self._success_above
        truncated = self._flag(seen, "truncated") and done
        info = {
            "success": self._flag(seen, "success", is_won),
            "valid": self._flag(seen, "valid", True),
        }
        return Step(observation, reward, done and not truncated, truncated, info)

    def close(self) -> None:
        self._connection.close()

    def _flag(self, seen: Mapping[str, Any], name: str, default: bool = False) -> bool:
        return self._read(lambda seen: read_flag(seen, name, default), seen)

    def _find(self, answer: Mapping[str, Any]) -> Observation:
        find = functools.partial(find_text, field=self._observation_field)
        seen = answer.get("observation")
        self._text = self._read(find, seen)
        has_images = isinstance(seen, Mapping) and bool(seen.get("images"))
        if has_images and self._images is None:
            raise self._given_up(
                "the server sends images: env.kwargs.images=True shows them to models "
                "behind an API, False shows the text alone"
            )
        is_shown = has_images and self._images
        images = self._read(find_images, seen) if is_shown else ()
        return Observation(self._text, images)

    def _read(self, read: Callable[[Any], Value], value: Any) -> Value:
        try:
            return read(value)
        except ValueError as error:
            raise self._given_up(str(error)) from error

    def _given_up(self, message: str) -> OpenEnvError:
        # The episode cannot go on, and its session would wait for nothing.
        self._connection.close()
        return OpenEnvError(message)

    def _invalid(self, words: str) -> Step:
        """A step that the server has not seen, or has not taken."""
        return refuse_reply(Observation(f"{words}\n{self._text}"))


def _about(pages_url: str, seconds: float, *, is_needed: bool) -> Mapping[str, Any]:
    """What a server says of itself; nothing if it does not and need not."""
    try:
        return fetch_document(f"{pages_url}/metadata", seconds)
    except OpenEnvError:
        if is_needed:
            raise
        return {}


def _describe(about: Mapping[str, Any], hint: str) -> str:
    words = [about.get("name"), about.get("description"), hint]
    text = "\n".join(w.strip() for w in words if isinstance(w, str) and w.strip())
    if not text:
        raise ValueError(
            f"the server says nothing about its game ({json.dumps(about)[:80]}); say "
            "what to do with the option instruction"
        )
    return text[:MAX_INSTRUCTION]
