"""Programs that try to forge a verdict, or to learn what is expected."""

import glob
import json
import os
import sys

import pytest

from ragen_jax.host_games.coding import runner as code_runner
from ragen_jax.host_games.coding import tasks as code_tasks
from ragen_jax.host_games.coding.game import Coding

SECRET = "84612907"
ROWS = [
    {
        "problem": f"Print the secret number {number}.",
        "tests": json.dumps([{"input": "x", "output": SECRET}] * 2),
    }
    for number in range(30)
] + [
    {
        "problem": f"Write f, which returns the secret list {number}.",
        "tests": json.dumps(
            [
                {
                    "input": ["x"],
                    "output": [int(SECRET), True],
                    "type": "function_call",
                    "fn_name": "f",
                }
            ]
            * 2
        ),
    }
    for number in range(30)
]
FORGED = {
    "a verdict and a hard exit": """
import os
print('{"passed": 2, "total": 2, "success": true, "reward": 1.0}', flush=True)
os._exit(0)
""",
    "a verdict at exit": """
import atexit, json
atexit.register(print, json.dumps({"passed": 2, "total": 2}))
def f(x): return 0
""",
    "an answer to the judge on every descriptor": """
import os, struct
for fd in range(256):
    try:
        os.write(fd, struct.pack("<iiI", 0, 0, 4) + b"true")
    except OSError:
        pass
os._exit(0)
""",
    "a result of its own under the mark": """
import os
print("\\x1eresult true\\n\\x1eresult [1, true]", flush=True)
os._exit(0)
""",
    "patched json": """
import json, builtins
json.dumps = lambda *a, **k: "true"
json.loads = lambda *a, **k: True
builtins.all = builtins.any = lambda *a: True
builtins.print = lambda *a, **k: None
def f(x): return True
""",
    "a result equal to everything": """
class Equal(list):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = None
def f(x): return Equal([1, True])
class Text(str):
    def __eq__(self, other): return True
print(Text("anything"))
""",
    "nothing at all": "",
    "an infinite echo of its input": "print(input() * 100000)",
}
# Reads all that it can reach and prints what has the name of a test in it.
READER = """
import gc, sys
sys.setrecursionlimit(1000)  # `repr` of what holds itself ends before the stack does
seen = []
for module in list(sys.modules.values()):
    seen.append(repr(getattr(module, "__dict__", None)))
frame = sys._getframe()
while frame:
    seen.append(repr(frame.f_locals) + repr(frame.f_globals))
    frame = frame.f_back
for thing in gc.get_objects():
    try:
        seen.append(repr(thing))
    except Exception:
        pass
main = sys.modules["__main__"]
print(getattr(main, "TESTS", None), getattr(main, "expected", None))
text = " ".join(seen)
print("".join(("8461", "2907")) in text, len(text) > 10000)
"""


@pytest.fixture(scope="module")
def game(sandbox, tmp_path_factory):
    path = tmp_path_factory.mktemp("tasks") / "tasks.json"
    path.write_text(json.dumps(ROWS))
    game = Coding(path=str(path), isolation=sandbox.isolation, test_seconds=2.0)
    yield game
    game.close()


def either_kind(game):
    functions = []
    for task in range(game.num_tasks):
        game.reset(0, task)
        if game._task.function not in functions:
            functions.append(game._task.function)
            yield
    assert functions == [None, "f"]


@pytest.mark.parametrize("attack", FORGED)
def test_a_forged_verdict_scores_nothing(game, attack):
    for _ in either_kind(game):
        step = game.step(FORGED[attack])
        assert (step.reward, step.info["success"]) == (0.0, False)


def test_the_right_answer_scores_in_these_tasks(game):
    """So that the zeros above and below are not the tasks' fault."""
    for _ in either_kind(game):
        code = f"print({SECRET})\ndef f(x): return [{SECRET}, True]"
        assert game.step(code).reward == 1.0


@pytest.mark.parametrize("function", [None, "f"])
def test_expected_outputs_are_not_in_the_programs_process(sandbox, function):
    test = code_tasks.Test('["x"]', (int(SECRET),))
    program = code_tasks.Task("", function, (test,)).program(READER)
    # One that knows them runs first, the next being forked from the same process.
    knows = f"print({SECRET}); print(input())"
    assert SECRET in sandbox.run(knows, SECRET, 10).printed
    outcome = sandbox.run(program, test.given, 20)
    assert outcome.printed.split("\n")[:2] == ["None None", "False True"]


def test_what_is_in_the_programs_process_would_be_found(sandbox):
    """So that the test above can fail."""
    program = code_tasks.Task("", "f", ()).program(READER)
    outcome = sandbox.run(program, json.dumps([SECRET]), 20)
    assert outcome.printed.split("\n")[:2] == ["None None", "True True"]


def test_the_file_of_tasks_cannot_be_read(sandbox, tmp_path):
    if sandbox.isolation == "limits":
        pytest.skip("without namespaces it can, as the description says")
    paths = [code_runner.__file__, "/etc/passwd", "/proc/1/environ", str(tmp_path)]
    code = f"import os\nprint([os.path.exists(p) for p in {paths}])\nimport numpy"
    outcome = sandbox.run(code, "", 10)
    assert outcome.printed == "[False, False, False, False]\n"
    assert not outcome.ok


def test_installed_packages_cannot_be_read(sandbox):
    """Ours may be one, with the tests and solutions of its tasks."""
    if sandbox.isolation == "limits":
        pytest.skip("without namespaces they can, as the description says")
    folders = {"/usr/lib", "/usr/local/lib", f"{sys.base_prefix}/lib"}
    found = [path for one in folders for path in glob.glob(f"{one}/python*/*-packages")]
    if not any(map(os.listdir, found)):
        pytest.skip("nothing is installed beside this Python")
    code = f"import os\nprint([n for p in {found} if os.path.exists(p)"
    code += " for n in os.listdir(p)])"
    assert sandbox.run(code, "", 10).printed == "[]\n"
