"""Environments in the shape that RAGEN's have, written for tests."""

import dataclasses
import random
from typing import ClassVar


@dataclasses.dataclass
class LineConfig:
    """Of `LineEnv`."""

    length: int = 5
    max_steps: int = 8
    render_mode: str = "text"
    action_lookup: dict | None = dataclasses.field(
        default_factory=lambda: {1: "Left", 2: "Right"}
    )


class LineEnv:
    """Discrete actions: walk along a line to its flag, at one of its ends."""

    INVALID_ACTION = 0

    def __init__(self, config: LineConfig | None = None):
        self.config = config or LineConfig()
        self.ACTION_LOOKUP = self.config.action_lookup
        self.calls = []

    def reset(self, seed=None, mode=None):
        self.calls.append((seed, mode))
        draw = random.Random(f"line {seed}")
        self.place = draw.randrange(1, self.config.length - 1)
        self.flag = draw.choice((0, self.config.length - 1))
        self.num_steps = 0
        return "not looked at"

    def step(self, action: int):
        assert action in (1, 2)
        before = self.place
        step = 1 if action == 2 else -1
        self.place = min(max(self.place + step, 0), self.config.length - 1)
        self.num_steps += 1
        success = self.place == self.flag
        info = {
            "action_is_effective": self.place != before,
            "action_is_valid": True,
            "success": success,
            "distance": abs(self.place - self.flag),
        }
        done = success or self.num_steps == self.config.max_steps
        return "not looked at", (1 if success else -0.1), done, info

    def render(self, mode=None):
        if self.config.render_mode != "text":
            return [[0, 0, 0]]
        cells = ["_"] * self.config.length
        cells[self.flag] = "F"
        cells[self.place] = "P"
        return "".join(cells)

    def get_all_actions(self):
        return list(self.ACTION_LOOKUP)

    def close(self):
        self.calls.append("close")


@dataclasses.dataclass
class SumConfig:
    """Of `SumEnv`; no `action_lookup`."""

    largest: int = 9


class SumEnv:
    """Language actions: write the sum of two numbers; three attempts."""

    ACTION_LOOKUP: ClassVar[dict] = {}
    INVALID_ACTION = ""

    def __init__(self, config: SumConfig | None = None):
        self.config = config or SumConfig()
        self.render_cache = None

    def reset(self, seed=None, mode=None):
        draw = random.Random(f"sum {seed}")
        self.numbers = [draw.randint(1, self.config.largest) for _ in range(2)]
        self.attempts = 0
        self.render_cache = "+".join(map(str, self.numbers))
        return self.render_cache, {}

    def step(self, action: str):
        self.attempts += 1
        if not action.isdecimal():
            self.render_cache = f"{action[:20]!r} is no number"
            info = {"action_is_valid": False, "success": False}
            return self.render_cache, 0, self.attempts == 3, info
        success = int(action[:20]) == sum(self.numbers)
        self.render_cache = "Right" if success else "Wrong"
        info = {"action_is_valid": True, "success": success}
        return self.render_cache, float(success), success or self.attempts == 3, info

    def render(self):
        return self.render_cache

    def close(self):
        self.render_cache = None


class NamesEnv:
    """Actions get their names when an episode begins; `info` is empty."""

    def __init__(self):
        self.config = LineConfig(action_lookup=None)

    def reset(self, seed=None, mode=None):
        names = ("Fox", "Owl") if seed % 4 < 2 else ("Elm", "Oak")
        self.config.action_lookup = dict(enumerate(names, start=1))

    def step(self, action):
        return None, float(action == 2), True, {}

    def render(self):
        return " or ".join(self.config.action_lookup.values())

    def close(self):
        pass


class QuestionEnv:
    """As RAGEN's `StaticEnv`: it renders nothing, and `reset` takes a seed alone."""

    def reset(self, seed=None):
        self.step_num = 0
        return "What is 1 + 1?"

    def step(self, action):
        is_right = action == "2"
        reward = 1 / 2**self.step_num if is_right else 0.0
        self.step_num += 1
        info = {"success": is_right, "is_valid": action.isdecimal()}
        return "Correct!" if is_right else "Incorrect.", reward, is_right, info

    def render(self):
        pass

    def close(self):
        pass


class SilentEnv(QuestionEnv):
    """It does not observe anything either."""

    def reset(self, seed=None):
        pass
