"""A game on OpenEnv's own server, for the Python of a virtual environment that has it.

The player says words until it says the last one it was shown. It raises at "raise",
pays nothing (null) for "null", and waits at "wait". Arguments: port, sessions at once.
"""

import sys
import time

import uvicorn
from fastapi import FastAPI
from openenv.core.env_server.http_server import HTTPEnvServer
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import (
    Action,
    EnvironmentMetadata,
    Observation,
    State,
)

WORDS = ("north", "east", "south", "west")


class Say(Action):
    message: str


class Heard(Observation):
    prompt: str


class Words(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State()

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._state = State(episode_id=episode_id, step_count=0)
        self._word = WORDS[(seed or 0) % len(WORDS)]
        return Heard(prompt=f"Say {self._word}.", reward=None, done=False)

    def step(self, action, timeout_s=None, **kwargs):
        self._state.step_count += 1
        if action.message == "raise":
            raise RuntimeError("raised on purpose")
        if action.message == "wait":
            time.sleep(1.0)
        if action.message == "null":
            return Heard(prompt="Nothing.", reward=None, done=False)
        is_right = action.message == self._word
        words = "Right." if is_right else f"No, say {self._word}."
        return Heard(prompt=words, reward=float(is_right), done=is_right)

    @property
    def state(self):
        return self._state

    def get_metadata(self):
        return EnvironmentMetadata(name="Words", description="Say the word asked for.")


def main() -> None:
    app = FastAPI()
    server = HTTPEnvServer(
        env=Words,
        action_cls=Say,
        observation_cls=Heard,
        max_concurrent_envs=int(sys.argv[2]),
    )
    server.register_routes(app)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")


if __name__ == "__main__":
    main()
