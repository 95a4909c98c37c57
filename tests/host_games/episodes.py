"""Episodes of a game, played in a fresh process and played again."""

import os
import subprocess
import sys

# Plays every episode, begins it once more and leaves it, and plays it again.
PROGRAM = """
import sys
from {module} import {name}

def play(game, seed):
    said = [game.reset(seed), game.solution()]
    for reply in {replies}:
        said.append(game.step(reply))
        if said[-1].terminated or said[-1].truncated:
            return said
    return said + [game.step(reply) for reply in game.solution()]

for options in {options}:
    for split in {splits}:
        game = {name}(split=split, **options)
        for seed in range({num_seeds}):
            said = play(game, seed)
            print(*said, sep="\\n")
            game.reset(seed)
            for reply in {replies}[:1]:
                game.step(reply)
            assert play(game, seed) == said
        game.close()
names = [module.split(".") for module in sys.modules]
assert not {{x[0] for x in names}} & {{"jax", "flax", "envs", "spacy", "rapidfuzz"}}
ours = {{x[1] for x in names if x[0] == "ragen_jax" and x[1:]}}
assert ours <= {{"host_games"}}
"""


def printed(program: str) -> bytes:
    """Output of a program, the same in two processes that hash texts differently."""
    first, second = (
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
        )
        for seed in ("1", "2")
    )
    assert first.returncode == 0, first.stderr.decode()
    assert first.stdout == second.stdout
    return first.stdout


def play(game, replies):
    """The steps of replies, of which only the last one may end the game."""
    steps = [game.step(reply) for reply in replies]
    assert not any(step.terminated or step.truncated for step in steps[:-1])
    return steps
