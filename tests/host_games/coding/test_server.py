"""A SandboxFusion server instead of this machine; here one that answers like it."""

import json
import subprocess
import sys

import pytest

from ragen_jax.host_games.coding import judge as code_judge
from ragen_jax.host_games.coding.examples import EXAMPLES
from tests.host_games.coding.games import playing
from tests.host_games.stub_server import answering


def fusion(path, headers, body):
    """Answers as SandboxFusion does, running nothing but what these tests send."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", body["code"]],
        input=body["stdin"],
        capture_output=True,
        text=True,
    )
    result = {
        "status": "Finished",
        "return_code": done.returncode,
        "stdout": done.stdout,
        "stderr": done.stderr,
        "execution_time": 0.1,
    }
    status = "Success" if done.returncode == 0 else "Failed"
    return 200, {"status": status, "message": "", "run_result": result}


def test_a_server_runs_programs_instead():
    with (
        answering(fusion) as (url, requests),
        playing("validation", sandbox_url=url + "/", memory_mb=256) as game,
    ):
        assert url in game.describe_isolation()
        for task in range(game.num_tasks):
            game.reset(0, task)
            assert game.step(*game.solution()).reward == 1.0
            assert game.step("raise ValueError").reward == 0.0
    path, body = requests[0]
    assert path == "/run_code"
    assert body["language"] == "python"
    assert (body["run_timeout"], body["memory_limit_MB"]) == (3.0, 256)
    # The expected outputs stay here.
    expected = EXAMPLES[14].tests[-1].expected[0]
    assert not any(str(expected) in json.dumps(body) for _, body in requests)


TIMEOUT = {"status": "TimeLimitExceeded", "return_code": None, "stdout": "3"}


def test_a_server_that_stopped_a_program():
    answer = {"status": "Failed", "run_result": TIMEOUT}
    with answering(lambda *request: (200, answer)) as (url, _):
        outcome = code_judge.FusionSandbox(url, 256).run("", "", 1.0)
    assert (outcome.ok, outcome.timed_out) == (False, True)


FAULT = {"status": "SandboxError", "message": "cgroup is gone", "run_result": None}


def test_an_error_of_the_servers_own_is_no_verdict():
    """A program is tried again, and its row fails: a score of 0 would be learned."""
    answers = [FAULT]

    def once_broken(*request):
        return (200, answers.pop()) if answers else fusion(*request)

    with answering(once_broken) as (url, requests):
        outcome = code_judge.FusionSandbox(url, 256).run("print(3)", "", 1.0)
    assert (outcome.printed, outcome.ok, len(requests)) == ("3\n", True, 2)
    with (
        answering(lambda *request: (200, FAULT)) as (url, requests),
        pytest.raises(ConnectionError, match=r"twice.*SandboxError.*cgroup is gone"),
    ):
        code_judge.FusionSandbox(url, 256).run("print(3)", "", 1.0)
    assert len(requests) == 2


def test_a_server_of_another_kind_is_an_error():
    with (
        answering(lambda *request: (200, {"detail": "Not Found"})) as (url, _),
        pytest.raises(ConnectionError, match="does not answer as a SandboxFusion"),
    ):
        code_judge.FusionSandbox(url, 256).run("", "", 1.0)
    with pytest.raises(ConnectionError, match="check that the server runs"):
        code_judge.FusionSandbox("http://127.0.0.1:9", 256).run("", "", 1.0)
