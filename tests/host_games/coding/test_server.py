"""A SandboxFusion server instead of this machine; here one that answers like it."""

import http.server
import json
import subprocess
import sys
import threading

import pytest

from ragen_jax.host_games.coding import judge as code_judge
from ragen_jax.host_games.coding.examples import EXAMPLES
from tests.host_games.coding.games import playing


class Fusion(http.server.BaseHTTPRequestHandler):
    """Answers as SandboxFusion does, running nothing but what these tests send."""

    requests: tuple = ()
    answer: dict | None = None

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).requests += ((self.path, body),)
        answer = self.answer or self.run(body)
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(data)

    def run(self, body):
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
        return {
            "status": status,
            "message": "",
            "compile_result": None,
            "run_result": result,
        }

    def log_message(self, *arguments):
        """Quiet."""


@pytest.fixture
def fusion():
    class Handler(Fusion):
        pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_runs_programs_instead(fusion):
    handler, url = fusion
    with playing("validation", sandbox_url=url + "/", memory_mb=256) as game:
        assert url in game.describe_isolation()
        for task in range(game.num_tasks):
            game.reset(0, task)
            assert game.step(*game.solution()).reward == 1.0
            assert game.step("raise ValueError").reward == 0.0
    path, body = handler.requests[0]
    assert path == "/run_code"
    assert body["language"] == "python"
    assert (body["run_timeout"], body["memory_limit_MB"]) == (3.0, 256)
    # The expected outputs stay here.
    expected = EXAMPLES[14].tests[-1].expected[0]
    assert not any(str(expected) in json.dumps(body) for _, body in handler.requests)


TIMEOUT = {"status": "TimeLimitExceeded", "return_code": None, "stdout": "3"}


@pytest.mark.parametrize(
    ("answer", "timed_out"),
    [
        ({"status": "Failed", "run_result": TIMEOUT}, True),
        ({"status": "SandboxError", "message": "x", "run_result": None}, False),
    ],
)
def test_a_server_that_stopped_a_program(fusion, answer, timed_out):
    handler, url = fusion
    handler.answer = answer
    outcome = code_judge.FusionSandbox(url, 256).run("", "", 1.0)
    assert (outcome.ok, outcome.timed_out) == (False, timed_out)


def test_a_server_that_is_none_is_an_error(fusion):
    handler, url = fusion
    handler.answer = {"detail": "Not Found"}
    with pytest.raises(ConnectionError, match="is a SandboxFusion server there"):
        code_judge.FusionSandbox(url, 256).run("", "", 1.0)
    with pytest.raises(ConnectionError, match="is a SandboxFusion server there"):
        code_judge.FusionSandbox("http://127.0.0.1:9", 256).run("", "", 1.0)
