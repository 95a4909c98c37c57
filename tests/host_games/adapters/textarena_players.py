"""Random players of the real games of TextArena, for tests; and digests of episodes.

As a program it prints what every game showed and paid, as a digest a line, so that two
processes can be compared: python -m tests.host_games.adapters.textarena_players IDS.
"""

import contextlib
import hashlib
import random
import re
import sys

from textarena.envs.registration import ENV_REGISTRY

from ragen_jax.host_games.adapters.textarena import TextArenaGame
from ragen_jax.host_games.adapters.textarena_games import (
    GAMES,
    VARIANTS,
    find_game,
)
from ragen_jax.host_games.contract import HOSTILE

MAX_REPLIES = 500


def talks(said):
    """An opponent where moves are words."""
    return "[Accept]"


def folder_of(id):
    return ENV_REGISTRY[id].entry_point.split(".")[2]


def played_ids():
    """Every id that this Python can play, without those that only show it otherwise."""
    ids = []
    for id in ENV_REGISTRY:
        with contextlib.suppress(ValueError):
            find_game(id, folder_of(id))
            ids += [] if id.endswith(VARIANTS) else [id]
    return ids


def make(id, split="training", **options):
    game = GAMES[folder_of(id)]
    if game.num_players == 2 and game.moves is None:
        # Its words lose some games, which must not be before the first reply.
        options |= {"opponent": f"{talks.__module__}:talks", "player": 0}
    return TextArenaGame(split, id=id, **options)


def choose(game, shown, draw):
    """A legal move where moves are listed, else what stands in brackets."""
    moves = GAMES[folder_of(game._id)].moves
    if moves is None:
        return draw.choice(re.findall(r"\[[^\[\]\n]{1,30}\]", shown) or ["[0]"])
    texts = list(moves(game._env, shown, draw))
    draw.shuffle(texts)
    with game._random.running():
        return next(filter(game._is_legal, texts), "[0]")


def play(game, seed, replies=None, most=MAX_REPLIES):
    """What an episode showed and paid, the last step at the end."""
    draw = random.Random(seed)
    shown = game.reset(seed).text
    seen, rules = [shown], shown
    for i in range(most):
        told = shown if "[" in shown else rules
        reply = (
            choose(game, told, draw) if replies is None else replies[i % len(replies)]
        )
        step = game.step(reply)
        shown = step.observation.text
        seen.append((shown, float(step.reward), dict(step.info)))
        if step.terminated:
            return seen, step
    return seen, step


def digest(id):
    """Of two episodes with random replies and two with hostile ones."""
    sides = [0, 1] if GAMES[folder_of(id)].num_players == 2 else [0, 0]
    seen = [
        play(make(id, player=side), seed + side, replies, most=8)[0]
        for seed, replies in enumerate((None, HOSTILE))
        for side in sides
    ]
    return hashlib.sha256(repr(seen).encode()).hexdigest()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print("digest", name, digest(name))
