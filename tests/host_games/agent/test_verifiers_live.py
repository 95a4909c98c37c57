"""The package verifiers itself: the page's example, and the kinds of its table.

It needs other versions of packages than ours, so it has a virtual environment of its
own, whose Python RAGEN_JAX_VERIFIERS_PYTHON names.
"""

import contextlib
import json
import os
import pathlib
import re

import pytest

from ragen_jax.host_games.agent.calls import CallRefused, ChatAnswer
from ragen_jax.host_games.agent.game import write_refusal
from ragen_jax.host_games.agent.messages import write_call
from ragen_jax.host_games.agent.verifiers import VERSION, VerifiersGame
from ragen_jax.host_games.base import BrokenContract
from tests.host_games.agent.serving import MODEL, Model, serving
from tests.host_games.agent.test_verifiers import play

pytestmark = [pytest.mark.live, pytest.mark.slow]

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "agents.md"


@pytest.fixture(scope="session")
def python():
    """The Python of an environment that has verifiers."""
    given = os.environ.get("RAGEN_JAX_VERIFIERS_PYTHON")
    if given is None:
        pytest.skip(
            f"RAGEN_JAX_VERIFIERS_PYTHON names no Python with verifiers=={VERSION}"
        )
    return given


@pytest.fixture
def playing(python, tmp_path, monkeypatch):
    """Makes games; the tasksets are the page's and those beside this file."""
    _, text = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "my_sums.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(HERE / "verifiers_tasksets")

    @contextlib.contextmanager
    def make(taskset, **options):
        game = VerifiersGame(taskset=taskset, python=python, **options)
        with contextlib.closing(game):
            yield game

    return make


def call(name, **arguments):
    """A reply that uses a tool."""
    calls = (write_call("call_0", name, json.dumps(arguments)),)
    return json.dumps(ChatAnswer("", calls, "tool_calls").to_json())


def right(text):
    """The answer to a question of the page's example."""
    a, b = re.search(r"(\d) \+ (\d) =", text).groups()
    return str(int(a) + int(b))


def test_the_page_s_example_is_won_lost_and_refused(playing):
    too_long = CallRefused("too long", 400, "context_length_exceeded")
    over = CallRefused("no more", 429, "budget_exhausted")
    with playing("my_sums", metrics=["num_letters"]) as game:
        assert game.num_tasks == 90
        answer = right(game.reset(0, 5).text)
        won, lost = game.step(answer), play(game, "none", task=5)[1]
        assert play(game, write_refusal(too_long))[1].terminated
        assert play(game, write_refusal(over))[1].truncated
    assert (won.reward, won.terminated) == (1.0, True)
    assert won.info == {"success": True, "valid": True, "num_letters": len(answer)}
    assert (lost.reward, lost.info["success"]) == (0.0, False)


def test_a_harness_of_verifiers_plays(playing):
    """It starts a program, whose environment uv makes."""
    with playing("my_sums", config={"agent": {"harness": {"id": "null"}}}) as game:
        answer = right(game.reset(0, 5).text)
        assert game.step(answer).reward == 1.0


def test_toolsets(playing):
    """One that all episodes share, and one of the task's that counts its uses.

    The count is in a state that the tool's server and the task share.
    """
    with playing("task_tools", metrics=["num_uses"], success_reward=2.0) as game:
        calls = call("add", a=20, b=5), call("tools_add", a=20, b=4)
        shown, step = play(game, *calls, "24", task=3)
        assert shown[1:3] == ["[tool] 25", "[tool] 24"]
        assert (step.reward, step.info["success"]) == (2.0, True)
        assert step.info["num_uses"] == 1.0


def test_hooks_change_and_end(playing):
    with playing("hooks") as game:
        shown, step = play(game, call("add", a=1, b=2), call("add", a=1, b=2), task=0)
        # The gate gives the tool's answer in place of the tool.
        assert shown[1] == "[tool] No."
        assert (step.reward, step.terminated) == (0.5, True)


def test_an_environment_talks(playing):
    """Tasks without end, four turns, and numbers drawn at random."""
    with playing("guess", limit=20) as game:
        lost, step = play(game, "0", "0", "0", "0", task=3)
        again, _ = play(game, "0", "0", "0", "0", task=3)
        assert (step.reward, step.terminated) == (0.0, True)
        assert lost == again
        assert len(set(lost)) == 5
        assert game.step(game.reset(0, 3).text[-1]).reward == 1.0


def test_other_environments_play_the_tasks(playing):
    with playing("my_sums", config={"id": "best-of-n", "n": 2}) as game:
        shown, step = play(game, "none", right(game.reset(0, 5).text), task=5)
        assert shown[0] == shown[1]
        assert (step.reward, step.terminated) == (0.5, True)


def test_users_and_judges_are_other_models(playing):
    def answer(asked):
        text = asked.messages[-1]["content"]
        if "Reference answer" in text:
            return ChatAnswer("yes", prompt_tokens=1, completion_tokens=1)
        said = "Add." if text.startswith("Hello") else "###DONE###"
        return ChatAnswer(said, prompt_tokens=1, completion_tokens=1)

    with serving(Model(answer)) as server:
        where = {"base_url": server.url, "api_key_var": "NONE"}
        user = {"model": MODEL, "client": {"type": "eval", **where}}
        with playing("my_sums", config={"id": "user-sim", "user": user}) as game:
            shown, step = play(game, "none")
            assert shown[0] == "[user] Add."
            assert (step.reward, step.terminated) == (0.0, True)
        judges = [{"id": "reference", "model": MODEL, **where}]
        config = {"taskset": {"task": {"judges": judges}}}
        with playing("my_sums", config=config) as game:
            assert play(game, "none")[1].reward == 1.0
    refused = pytest.raises(BrokenContract, match="does not train its role 'user'")
    with playing("my_sums", config={"id": "user-sim"}) as game, refused:
        play(game, "Add.", "2", "###DONE###")


@pytest.mark.parametrize(
    ("harness", "runtime", "words"),
    [
        ("codex", "subprocess", "needs a container runtime"),
        ("ragen_jax_chat", "podman", "podman"),
    ],
)
def test_what_needs_containers_says_so(playing, harness, runtime, words):
    agent = {"harness": {"id": harness}, "runtime": {"type": runtime}}
    refused = pytest.raises(BrokenContract, match=words)
    with playing("my_sums", config={"agent": agent}) as game, refused:
        game.reset(0, 0)


def test_environments_of_earlier_versions_are_refused(playing):
    refused = pytest.raises(ValueError, match="module 'verifiers' has no attribute")
    with refused, playing("earlier"):
        """It does not come so far."""
