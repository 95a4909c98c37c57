"""Environments of verifiers as agents, played by a package that stands in for it."""

import asyncio
import contextlib
import importlib.util
import json
import os
import pathlib
import sys
import time
import types
from unittest import mock

import pytest

from ragen_jax.host_games import contract
from ragen_jax.host_games.agent import verifiers
from ragen_jax.host_games.agent.calls import CallRefused, ChatAnswer
from ragen_jax.host_games.agent.game import write_refusal
from ragen_jax.host_games.agent.messages import write_call
from ragen_jax.host_games.agent.verifiers import VerifiersGame
from ragen_jax.host_games.base import SPLITS, BrokenContract, SpentProcess
from ragen_jax.rollout.host.env import build_game, make_host_game
from tests.rollout.host.test_agents import SIZES
from tests.rollout.host.test_games import SETTINGS

STAND_IN = pathlib.Path(__file__).with_name("verifiers_stand_in.py")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Has the package that stands in; this Python and its programs find it."""
    (tmp_path / "verifiers").mkdir()
    (tmp_path / "verifiers" / "__init__.py").write_text(STAND_IN.read_text())
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@contextlib.contextmanager
def playing(taskset, split="training", **options):
    game = VerifiersGame(split, taskset=taskset, **options)
    with contextlib.closing(game):
        yield game


def play(game, *replies, task=None, seed=4):
    """The step of the last reply."""
    shown = [game.reset(seed, task).text]
    for reply in replies:
        step = game.step(reply)
        shown.append(step.observation.text)
    return shown, step


def first_texts(game):
    return [game.reset(seed, None).text for seed in range(game.num_tasks)]


def test_the_environment_pays_at_the_end():
    with playing("sums", metrics=["even"], success_reward=0.5) as game:
        assert (game.name, game.num_tasks) == ("sums", 27)
        shown, step = play(game, "two")
        (number,) = shown[0].split("number ")[1:]
        is_even = int(number) % 2 == 0
        assert (step.reward, step.terminated) == (0.5 * is_even, True)
        assert step.info == {"success": is_even, "valid": True, "even": is_even}
        assert {play(game, "x", task=i)[1].reward for i in range(4)} == {0.0, 0.5}
    with playing("sums") as game:
        assert not any(play(game, "x", task=i)[1].info["success"] for i in range(4))


def test_what_roles_get_is_averaged():
    with playing("two", metrics=["words"]) as game:
        rewards = {play(game, "x", task=i)[1].reward for i in range(4)}
        assert rewards == {0.5, 0.75}
        assert play(game, "x")[1].info["words"] == 4.0


def test_a_tenth_of_what_is_different_is_held_out():
    """ "pairs" asks everything twice."""
    texts = {}
    for split in SPLITS:
        with playing("pairs", split, config={"taskset": {"count": 20}}) as game:
            texts[split] = first_texts(game)
    assert sorted(map(len, texts.values())) == [2, 18]
    assert len(set(texts["validation"])) == 1
    assert not set(texts["training"]) & set(texts["validation"])
    assert len(set(texts["training"] + texts["validation"])) == 10


def test_validation_has_settings_of_its_own():
    options = {
        "config": {"taskset": {"count": 3}},
        "validation": {"first": 10, "count": 2},
    }
    for split, numbers in (("training", "012"), ("validation", ("10", "11"))):
        with playing("sums", split, **options) as game:
            assert first_texts(game) == [f"[user] number {x}" for x in numbers]


def test_tasks_without_end_are_limited():
    with pytest.raises(ValueError, match="endless has tasks without end; set limit"):
        VerifiersGame(taskset="endless")
    with playing("endless", limit=20) as game:
        assert game.num_tasks == 18


def test_tools_are_used():
    with playing("tools") as game:
        call = game.reset(0, 0).call
        assert [x["function"]["name"] for x in call["tools"]] == ["s_double"]
        calls = (write_call("c", "s_double", '{"number": 4}'),)
        answer = ChatAnswer("", calls, "tool_calls")
        step = game.step(json.dumps(answer.to_json()))
        assert step.observation.text == "[tool] 8"
        other = ChatAnswer("", (write_call("c", "s_half", "{}"),), "tool_calls")
        told = game.step(json.dumps(other.to_json())).observation.text
        assert told == "[tool] There is no tool s_half; use s_double."
        assert game.step("8").terminated


def test_other_models_may_write_what_is_no_call(monkeypatch):
    """The policy's calls have been read; a role may have another model."""
    spec = importlib.util.spec_from_file_location("program", verifiers.PROGRAM)
    with mock.patch.dict(sys.modules):
        program = importlib.util.module_from_spec(spec)
        sys.modules["program"] = program
        spec.loader.exec_module(program)
    tools = program.Tools([], {"s_double": ("s", "double")}, {"s": {}}, None, None)
    for arguments, told in {
        '{"number": 4}': "8",
        "[4]": "The arguments are no JSON object.",
        "{": "The arguments are no JSON object.",
    }.items():
        function = types.SimpleNamespace(name="s_double", arguments=arguments)
        call = types.SimpleNamespace(id="c", function=function)
        answer = asyncio.run(tools.use(call))
        assert answer == {"role": "tool", "tool_call_id": "c", "content": told}


def test_dialogues_begin_as_the_task_says():
    with playing("converses") as game:
        roles = [x["role"] for x in game.reset(0, 0).call["messages"]]
        assert roles == ["system", "user", "assistant", "user"]


def test_a_dialogue_that_is_too_long_is_judged():
    too_long = CallRefused("too long", 400, "context_length_exceeded")
    over = CallRefused("no more", 429, "budget_exhausted")
    with playing("sums", success_reward=0.0) as game:
        _, step = play(game, write_refusal(too_long))
        assert (step.terminated, step.truncated, step.info["success"]) == (1, 0, 1)
        _, step = play(game, write_refusal(over))
        assert (step.terminated, step.truncated, step.info["success"]) == (0, 1, 0)


def test_what_environments_print_and_read_is_not_the_protocol_s():
    with playing("prints") as game:
        assert play(game, "x")[1].terminated


def test_seeds_repeat_what_is_drawn():
    with playing("draws") as game:
        texts = [game.reset(seed, 0).text for seed in (1, 2, 1)]
    assert texts[0] == texts[2] != texts[1]


@pytest.mark.parametrize(
    ("taskset", "options", "words"),
    [
        ("raises", {}, "ZeroDivisionError: a task broke"),
        ("untrained", {}, "does not train its role 'agent'"),
        ("sums", {"metrics": ["odd"]}, "metrics has 'odd', which the episode did not"),
        ("sums", {"metrics": ["skipped"]}, "metrics has 'skipped', which"),
    ],
)
def test_rows_fail_with_the_reason(taskset, options, words):
    with playing(taskset, **options) as game:
        for _ in range(2):
            with pytest.raises(BrokenContract, match=words):
                play(game, "x")


def test_a_process_that_ends_is_replaced():
    with playing("exits") as game:
        for _ in range(2):
            game.reset(0, 0)
            with pytest.raises(BrokenContract, match="ended with status 3"):
                game.step("x")


def test_episodes_are_cancelled(folder, monkeypatch):
    """One that waits, and one that was never answered."""
    with playing("hangs") as game:
        answered = game.reset(0, 0)
        game._episode.answer(ChatAnswer("x"))
        assert game.reset(1, 1).text != answered.text
        assert game.reset(0, 0).text == answered.text
    monkeypatch.setenv("BLOCKED", str(folder / "blocked"))
    with playing("blocks") as game:
        game.reset(0, 0)
        game._episode.answer(ChatAnswer("x"))
        while not (folder / "blocked").exists():
            time.sleep(0.01)
        with pytest.raises(SpentProcess, match="blocks runs on"):
            game.reset(1, 1)


def has_ended(process):
    """Within ten seconds, which a killed process does not need."""
    process.wait(10)
    return True


def test_games_of_a_process_share_a_program():
    games = [VerifiersGame(taskset="sums") for _ in range(2)]
    process = games[0]._program._child.process
    assert games[1]._program is games[0]._program
    # Both are in the middle of their episodes.
    texts = [game.reset(0, i).text for i, game in enumerate(games)]
    assert texts[0] != texts[1]
    assert all(game.step("x").terminated for game in games)
    games[0].close()
    assert play(games[1], "x")[1].terminated
    games[1].close()
    assert has_ended(process)
    with playing("sums") as game:
        assert game._program._child.process.pid != process.pid


def test_an_address_is_kept_if_it_is_free():
    """verifiers keeps what it knows of each to its end."""
    with playing("sums") as game:
        game.reset(0, 0)
        url = game._server.url
        game.reset(1, 1)
        assert game._server.url == url
        game._server.close()
        with verifiers.ApiServer(None, model="m", port=game._port):
            assert game.reset(0, 0).text
            assert game._server.url != url
            assert game.step("x").terminated


def test_the_program_does_not_import_packages_of_this_python(folder):
    folders = verifiers._own_folders().split(os.pathsep)
    assert str(folder) in folders
    assert not [x for x in folders if "site-packages" in x]
    assert os.path.dirname(json.__file__) not in folders
    assert os.path.dirname(os.__file__) not in folders


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"taskset": "nobody"}, "refuses the environment.*no taskset nobody"),
        ({"taskset": "sums", "limit": 1}, "sums has no task for training; hold out"),
        ({"taskset": "sums", "limit": 0}, "limit is 0; use a whole number"),
        ({"taskset": "sums", "python": 3}, "python is 3; use the path of a Python"),
        (
            {"taskset": "sums", "python": "/no/python"},
            "/no/python.*make an environment",
        ),
        ({"taskset": "sums", "python": "false"}, "'false'.*status 1.*pip install"),
        ({"taskset": "sums", "config": 3}, "config is 3; use a mapping, or None"),
        ({"taskset": "sums", "validation": []}, r"validation is \[\]; use a mapping"),
        ({"taskset": "sums", "success_reward": "1"}, "success_reward is '1'"),
    ],
)
def test_wrong_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        VerifiersGame(**options)


def test_a_python_without_verifiers_is_told_how_to_get_it(monkeypatch, folder):
    monkeypatch.setattr(verifiers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"no verifiers.*pip install verifiers==0\.4\.0"
    ):
        VerifiersGame(taskset="sums")
    (folder / "verifiers" / "__init__.py").write_text("")
    with pytest.raises(
        ValueError, match=r"status 1, and printed why.*env\.kwargs\.pyth"
    ):
        VerifiersGame(taskset="sums", python=sys.executable)


@pytest.mark.slow
def test_the_contract_holds(monkeypatch):
    # An episode that is left takes long to end: a few of the replies, and levels.
    few = contract.HOSTILE[1::2]
    monkeypatch.setattr(contract, "HOSTILE", few)
    monkeypatch.setattr(contract, "NUM_EPISODES", len(few))
    monkeypatch.setattr(contract, "NUM_BEGINNINGS", 8)
    settings = SETTINGS | SIZES | {"num_workers": 1}
    spec = make_host_game("verifiers:sums", {"metrics": ["even"]}, **settings).spec
    games = {split: build_game(spec, split) for split in SPLITS}
    subject = contract.Subject(spec, games)
    try:
        for check in contract.AGENT_CHECKS:
            assert list(check(subject)) == []
    finally:
        for game in games.values():
            game.close()
