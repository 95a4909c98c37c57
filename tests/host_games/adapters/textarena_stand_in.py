"""A package in TextArena's shape with two small games, for tests without TextArena.

Only what the adapter calls: the registry, `make`, wrappers, kinds of messages, and
states with TextArena's fields. The games stand in folders that the adapter knows.
"""

import enum
import random
import types

GAME_ID = -1


class ObservationType(enum.Enum):
    PROMPT = enum.auto()
    PLAYER_ACTION = enum.auto()
    GAME_MESSAGE = enum.auto()
    GAME_BOARD = enum.auto()
    GAME_ADMIN = enum.auto()


class Wrapper:
    def __init__(self, env):
        self.env = env


class ActionWrapper(Wrapper):
    """Takes replies; the name is what the adapter looks for."""


class Brackets(ActionWrapper):
    def action(self, action):
        return action if "[" in action else f"[{action}]"


class State:
    def __init__(self, num_players):
        self.current_player_id, self.error_count = 0, 0
        self.done, self.rewards, self.logs = False, None, []
        self.role_mapping = {}
        self.observations = {side: [] for side in range(num_players)}
        self.game_info = {side: {"invalid_move": False} for side in range(num_players)}

    def tell(self, text, kind, sender=GAME_ID, to=None):
        for side in self.observations if to is None else [to]:
            self.observations[side].append((sender, text, kind))

    def refuse(self, reason):
        """Once; the second time in a row the side has lost."""
        side = self.current_player_id
        self.error_count += 1
        if self.error_count == 1:
            self.tell(reason, ObservationType.GAME_ADMIN, to=side)
            return
        self.game_info[side]["invalid_move"] = True
        self.end({side: -1, 1 - side: 1}, reason)

    def end(self, rewards, reason):
        self.done, self.rewards = True, rewards
        for info in self.game_info.values():
            info["reason"] = reason


class Pile:
    """Two sides take one or two of seven; who takes the last wins.

    A side that waits is asked again.
    """

    def __init__(self, size=7):
        self.size = size

    def reset(self, num_players, seed):
        assert num_players == 2
        self.state = State(2)
        self.state.game_state = {"piles": [self.size]}
        for side in range(2):
            prompt = f"You are side {side}."
            self.state.tell(prompt, ObservationType.PROMPT, to=side)
        self._show()

    def _show(self):
        (left,) = self.state.game_state["piles"]
        self.state.tell(f"left: {left}", ObservationType.GAME_BOARD)

    def get_observation(self):
        side = self.state.current_player_id
        told, self.state.observations[side] = self.state.observations[side], []
        return side, told

    def step(self, action):
        state, side = self.state, self.state.current_player_id
        state.logs.append(action)
        random.random()
        state.tell(action, ObservationType.PLAYER_ACTION, sender=side)
        if action == "[wait]":
            return
        if action not in ("[0 1]", "[0 2]") or int(action[3]) > self.left:
            state.refuse(f"{action} is no move.")
            return
        state.game_state["piles"][0] -= int(action[3])
        state.error_count = 0
        self._show()
        if self.left == 0:
            state.end({side: 1, 1 - side: -1}, f"Side {side} took the last.")
        else:
            state.current_player_id = 1 - side

    @property
    def left(self):
        return self.state.game_state["piles"][0]


class Guess:
    """One side guesses a number from 0 to 9 that the global generator drew."""

    def reset(self, num_players, seed):
        assert num_players == 1
        self.state = State(1)
        random.seed(seed)
        self.number = random.randrange(10)
        self.state.tell("Guess.", ObservationType.PROMPT)
        self.state.tell("0 to 9", ObservationType.GAME_MESSAGE)

    get_observation = Pile.get_observation

    def step(self, action):
        self.state.tell(action, ObservationType.PLAYER_ACTION, sender=0)
        right = action == f"[{self.number}]"
        noise = random.randrange(1000)
        self.state.tell(f"noise {noise}", ObservationType.GAME_MESSAGE)
        self.state.end({0: 1.0 if right else 0.5}, "It was that." if right else "No.")


def make(id, **kwargs):
    name = id.removesuffix("-raw")
    env = {"Nim-v0": Pile, "GuessTheNumber-v0": Guess, "Tak-v0": Pile}[name](**kwargs)
    return env if id.endswith("-raw") else Brackets(Wrapper(env))


def _spec(folder):
    return types.SimpleNamespace(entry_point=f"textarena.envs.{folder}.env:Env")


_REGISTRY = {
    "Nim-v0": _spec("Nim"),
    "Nim-v0-raw": _spec("Nim"),
    "GuessTheNumber-v0": _spec("GuessTheNumber"),
    "Wordle-v0": _spec("Wordle"),
    "Tak-v0": _spec("Tak"),
    "Chess-v0": _spec("Chess"),
    "Sudoku-v0-hard-train": _spec("Sudoku"),
    "Mine-v0": types.SimpleNamespace(entry_point="my.own.package:Mine"),
}
envs = types.SimpleNamespace(registration=types.SimpleNamespace(ENV_REGISTRY=_REGISTRY))
