"""Environments that tests of the adapters play, by the options that make them games."""

import gymnasium

from tests.host_games.adapters import gymnasium_environments, ragen_environments


def newest(name):
    return max(i for i in gymnasium.registry if i.startswith(f"{name}-v"))


COMPASS = f"{gymnasium_environments.__name__}:tests/Compass-v0"
GUESS = f"{gymnasium_environments.__name__}:tests/Guess-v0"
MEANINGS = f"{gymnasium_environments.__name__}:tests/Meanings-v0"
TORUS = f"{gymnasium_environments.__name__}:tests/Torus-v0"
TAXI, CLIFF = newest("Taxi"), newest("CliffWalking")
LAKE = {
    "id": "FrozenLake-v1",
    "action_names": ["Left", "Down", "Right", "Up"],
    "make_kwargs": {"is_slippery": False},
}
# Past the holes of the default map.
THROUGH_THE_LAKE = ["Down", "Down", "Right", "Right", "Down", "Right"]

RAGENS = ragen_environments.__name__
LINE = {"env": f"{RAGENS}:LineEnv", "config": f"{RAGENS}:LineConfig"}
SUM = {"env": f"{RAGENS}:SumEnv"}
