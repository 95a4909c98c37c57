"""Environments of Gymnasium, written for tests; importing this registers them."""

import string

import gymnasium
import numpy as np
from gymnasium import spaces


class Guess(gymnasium.Env):
    """Text in, text out: guess a number; `time_limit` guesses."""

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012

    def __init__(self, render_mode=None, largest=9):
        self.observation_space = spaces.Text(40, charset=string.printable)
        self.action_space = spaces.Text(2, charset="0123456789")
        self.render_mode = render_mode
        self.largest = largest

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = int(self.np_random.integers(self.largest + 1))
        return f"0 to {self.largest}", {}

    def step(self, action):
        difference = self.number - int(action)
        text = "right" if difference == 0 else "more" if difference > 0 else "less"
        return text, float(difference == 0), difference == 0, False, {}


class Meanings(gymnasium.Env):
    """Discrete actions from 5 on that have names; numbers are shown."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.observation_space = spaces.Tuple(
            (spaces.Discrete(9), spaces.MultiBinary(2), spaces.MultiDiscrete((4, 4)))
        )
        self.action_space = spaces.Discrete(2, start=5)

    def get_action_meanings(self):
        return ["STAY", "GO"]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._see(), {}

    def step(self, action):
        assert action in (5, 6)
        return self._see(), -1.0, action == 6, False, {}

    def render(self):
        return np.full((4, 6, 3), 9, np.uint8)

    def _see(self):
        spaces = self.observation_space.spaces
        return (7, spaces[1].dtype.type([0, 1]), spaces[2].dtype.type([3, 2]))


class Torus(gymnasium.Env):
    """Actions that no text stands for."""

    observation_space = spaces.Text(5)
    action_space = spaces.Box(0, 1, (2,))


class Compass(gymnasium.Env):
    """A `Dict` with an array and a text in it; turn until you look where it says."""

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012
    names = ("east", "south", "west", "north")

    def __init__(self, render_mode=None):
        self.observation_space = spaces.Dict(
            {
                "looks": spaces.Discrete(4),
                "mission": spaces.Text(5),
                "needle": spaces.Box(-1, 1, (2,), dtype=int),
            }
        )
        self.action_space = spaces.Discrete(2)
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.looks, self.goal = map(int, self.np_random.permutation(4)[:2])
        return self._see(), {}

    def step(self, action):
        self.looks = (self.looks + (1, -1)[action]) % 4
        is_right = self.looks == self.goal
        return self._see(), float(is_right), is_right, False, {}

    def render(self):
        raise AssertionError("nothing asks for a drawing")

    def _see(self):
        needle = np.array([(1, 0), (0, 1), (-1, 0), (0, -1)][self.looks])
        mission = self.names[self.goal]
        return {"looks": self.looks, "mission": mission, "needle": needle}


def describe_compass(seen):
    """What `Compass` shows, in words."""
    x, y = seen["needle"]
    return f"look {seen['mission']}: {Compass.names[seen['looks']]} ({x}, {y})"


def describe_nothing(seen):
    """Forgets to return its text."""


def describe_badly(seen):
    """Expects something else."""
    return seen["image"]


gymnasium.register("tests/Compass-v0", Compass)
gymnasium.register("tests/Guess-v0", Guess, max_episode_steps=3)
gymnasium.register("tests/Meanings-v0", Meanings)
gymnasium.register("tests/Torus-v0", Torus)
