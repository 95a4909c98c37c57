"""The checks of games in Python: the built-in ones pass, and every fault is found."""

import pytest

from launch import check
from tests import commands

# A game of `broken_games`, the check that finds its fault, and words of what it says.
FAULTS = {
    "ShowsText": ("Any text", "reset must return an Observation, got str"),
    "ShowsBytes": ("Any text", "an Observation's text must be a str, got bytes"),
    "ReturnsTuple": ("Any text", "step must return a Step, got tuple"),
    "ShowsTextLater": ("Any text", "step must return a Step with an Observation, got"),
    "SaysWhy": ("Any text", "numbers only as reward and in info: why, got str"),
    "InfoIsList": ("Any text", "whose info is a dict, got list"),
    "Raises": ("Any text", "training, seed 0, reply ''"),
    "IgnoresSeed": ("The same seed", "after 0 replies it shows 'number"),
    "IgnoresSplit": ("Training and validation", "begin with 'number 0'"),
    "LosingSolution": ("Its solutions win", "info['success'] is not True"),
    "NoSolution": ("Its solutions win", "`solution` is empty, but `is_solvable`"),
    "LongSolution": ("Its solutions win", "takes 2 replies, longest_solution is 1"),
    "LacksNumber": ("Every number", "info['words'] is missing after 1 replies"),
}


def checked(name, capsys):
    """Exit status and lines of `launch.check`."""
    status = check.main([name])
    return status, capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    "name",
    [
        "tests.worlds.broken_games:Sound",
        "echo",
        "lean",
        "math",
        "search",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("alfworld", "coding", "webshop")
        ),
    ],
)
def test_the_games_keep_the_contract(name, capsys):
    status, lines = checked(name, capsys)
    assert status == 0, lines
    assert lines[-1] == f"{name} keeps the contract"


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_found_and_said(name, capsys):
    sentence, words = FAULTS[name]
    status, lines = checked(f"tests.worlds.broken_games:{name}", capsys)
    assert status == 1
    failed = [i for i, line in enumerate(lines) if line.startswith("FAILED")]
    place = next(i for i in failed if sentence in lines[i])
    assert words in lines[place + 1], lines


def test_play_says_what_a_game_should_have_returned():
    words = "--config=configs/world.py", "--player=solver"
    game = "--config.env.host=tests.worlds.broken_games:ReturnsTuple"
    done = commands.run(commands.command("play", *words, game))
    assert done.returncode == 2
    assert "ReturnsTuple: step must return a Step, got tuple" in done.stderr
    assert "Traceback" not in done.stderr
