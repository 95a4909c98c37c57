"""The checks of host games: the built-in ones pass, and every fault is found."""

import os
import re

import pytest

from configs import base
from launch import check
from ragen_jax.host_games import contract
from ragen_jax.host_games.base import SPLITS
from ragen_jax.rollout.host.env import WAITING_WORKERS, build_game, make_host_game
from tests import commands
from tests.host_games import broken_games
from tests.host_games.files import write_lines

BROKEN = "tests.host_games.broken_games"
# A game of `broken_games`, the check that finds its fault, and words of what it says.
FAULTS = {
    "ShowsText": ("any_reply", "reset must return an Observation, got str"),
    "ShowsBytes": ("any_reply", "an Observation's text must be a str, got bytes"),
    "ReturnsTuple": ("any_reply", "step must return a Step, got tuple"),
    "ShowsTextLater": ("any_reply", "step must return a Step with an Observation, got"),
    "SaysWhy": ("any_reply", "numbers only as reward and in info: why, got str"),
    "InfoIsList": ("any_reply", "whose info is a dict, got list"),
    "Raises": ("any_reply", "training, seed 0, reply ''"),
    "FailsAtSeed": ("any_reply", "training, seed 50, at the start: KeyError"),
    "IgnoresSeed": ("episodes_repeat", "after 0 replies it shows 'number"),
    "CountsEpisodes": ("episodes_repeat", "in a process that has played other"),
    "IgnoresSplit": ("splits", "begin with 'number 0'"),
    "LosingSolution": ("solutions", "info['success'] is not True"),
    "NoSolution": ("solutions", "`solution` is empty, but `is_solvable`"),
    "LongSolution": ("solutions", "takes 2 replies, longest_solution is 1"),
    "LacksNumber": ("metrics", "info['words'] is missing after 1 replies"),
}


@pytest.fixture(autouse=True)
def _one_worker(monkeypatch):
    """The checks start new processes again and again: one each time is enough."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


def subject(name):
    settings = base.get_config().host.to_dict()
    spec = make_host_game(name, {}, max_failed_fraction=1.0, **settings).spec
    return contract.Subject(spec, {split: build_game(spec, split) for split in SPLITS})


@pytest.mark.parametrize(
    "name",
    [
        f"{BROKEN}:Sound",
        f"{BROKEN}:Long",
        "echo",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("alfworld", "coding", "lean", "math", "search", "webshop")
        ),
    ],
)
def test_the_games_keep_the_contract(name, monkeypatch, capsys):
    if name == "coding":
        # Programs of all kinds are in its own tests; each takes long.
        few = contract.HOSTILE[1::3]
        monkeypatch.setattr(contract, "HOSTILE", few)
        monkeypatch.setattr(contract, "NUM_EPISODES", len(few))
        monkeypatch.setattr(contract, "NUM_BEGINNINGS", 8 * len(few))
    assert check.main([name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"{name} keeps the contract"
    assert sum(line.startswith("ok ") for line in lines) == len(contract.CHECKS)


def test_games_of_adapters_are_checked_by_their_name(monkeypatch, capsys):
    name = "ragen:tests.host_games.adapters.ragen_environments:SumEnv"
    monkeypatch.setattr(contract, "CHECKS", (contract.any_reply_is_answered,))
    assert check.main([name]) == 0
    assert f"{name} keeps the contract" in capsys.readouterr().out
    with pytest.raises(ValueError, match="nor begins with agent: or verifiers: or"):
        check.main(["ragen:"])


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_found_and_said(name):
    which, words = FAULTS[name]
    (look,) = (x for x in contract.CHECKS if x.__name__.startswith(which))
    problems = list(look(subject(f"{BROKEN}:{name}")))
    assert words in problems[0]


def test_a_fault_is_printed_and_counted(monkeypatch, capsys):
    two = (contract.any_reply_is_answered, contract.metrics_are_given)
    monkeypatch.setattr(contract, "CHECKS", two)
    assert check.main([f"{BROKEN}:LacksNumber"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "1 broken"
    assert sum(line.startswith("ok ") for line in lines) == 1
    place = next(i for i, line in enumerate(lines) if line.startswith("FAILED"))
    assert FAULTS["LacksNumber"][1] in lines[place + 1]


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [("Waits", None, WAITING_WORKERS), ("Waits", 2, 2), ("Faulty", None, None)],
)
def test_games_that_wait_get_more_processes(name, given, expected):
    settings = base.get_config().host.to_dict() | {"num_workers": given}
    reference = f"tests.host_games.games:{name}"
    env = make_host_game(reference, {}, max_failed_fraction=1.0, **settings)
    assert env.spec.num_workers == expected


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"num_tasks": 0}, "says num_tasks = 0; it has to be a whole number of at"),
        ({"num_tasks": "3"}, "says num_tasks = '3'; it has to be a whole number"),
        ({"longest_solution": 2.5}, "says longest_solution = 2.5; it has to be a"),
        ({"max_rows": -1}, "says max_rows = -1; it has to be a whole number of at"),
        ({"metrics": "m"}, "says metrics = 'm'; it has to be a tuple of names"),
        ({"instruction": None}, "says instruction = None; it has to be a text"),
        ({"max_step_seconds": "9"}, "says max_step_seconds = '9'; it has to be a num"),
    ],
)
def test_what_a_game_says_of_itself_is_checked(said, message, monkeypatch):
    for attribute, value in said.items():
        monkeypatch.setattr(broken_games.Sound, attribute, value, raising=False)
    with pytest.raises(ValueError, match=re.escape(message)):
        subject(f"{BROKEN}:Sound")


def test_half_a_letter_in_an_instruction_is_replaced(monkeypatch):
    """No tokenizer takes it: the run would end with a TypeError."""
    monkeypatch.setattr(broken_games.Sound, "instruction", "Say \ud83d so.")
    settings = base.get_config().host.to_dict()
    env = make_host_game(f"{BROKEN}:Sound", {}, max_failed_fraction=1.0, **settings)
    assert env.instruction == "Say ? so."


@pytest.mark.parametrize(
    ("name", "kwargs", "seconds"),
    [
        ("lean", {"url": "http://127.0.0.1:9"}, 90),
        ("lean", {"url": "http://127.0.0.1:9", "timeout_seconds": 10}, 70),
        ("search", {"retriever": "http://127.0.0.1:9", "timeout_seconds": 20}, 20),
    ],
)
def test_servers_time_limits_must_be_less_than_a_steps(name, kwargs, seconds, tmp_path):
    if name == "lean":
        rows = [{"formal_statement": f"theorem x{i} : {i} = {i}"} for i in range(40)]
        kwargs = kwargs | {"data": write_lines(tmp_path / "x.jsonl", rows)}
    settings = base.get_config().host.to_dict() | {"max_failed_fraction": 1.0}
    message = f"host.step_seconds = 10 ends a step before the time limit of {name}, "
    with pytest.raises(ValueError, match=f"{message}{seconds} s"):
        make_host_game(name, kwargs, **settings)
    settings["step_seconds"] = 100.0
    assert make_host_game(name, kwargs, **settings).spec.step_seconds == 100


def test_play_says_what_a_game_should_have_returned(capfd):
    words = "--config=configs/world.py", "--player=solver"
    game = f"--config.env.host={BROKEN}:ReturnsTuple"
    done = commands.call(commands.command("play", *words, game))
    assert done.returncode == 2
    assert "ReturnsTuple: step must return a Step, got tuple" in done.stderr
    # Nor does the worker print one.
    assert "Traceback" not in done.stderr + capfd.readouterr().err
