"""Scripts and what a Kimina server answers to them, in the form of its protocol.

Written by hand: no server has said them. `RAGEN_JAX_KIMINA` may name a folder with
recorded ones, `input/NAME.lean` and `output/NAME.json`, which are read, too.
"""

import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

_HEAD = "import Mathlib\n\n"


def _message(severity: str, line: int, column: int, end: int, text: str) -> dict:
    return {
        "severity": severity,
        "pos": {"line": line, "column": column},
        "endPos": {"line": line, "column": end},
        "data": text,
    }


def _answer(*messages: dict, **more: Any) -> dict:
    response = {"env": 0, "time": 0.25, **more}
    if messages:
        response["messages"] = list(messages)
    return {"error": None, "response": response}


# Script -> the entry of `results`, without the script's name.
WRITTEN = {
    f"{_HEAD}theorem a (p : Prop) (h : p) : p := by\n  exact h\n": _answer(),
    f"{_HEAD}theorem b (n : ℕ) (h : 0 < n) : True := by\n  trivial\n": _answer(
        _message("warning", 3, 21, 22, "unused variable `h`\nnote: a linter says so")
    ),
    f"{_HEAD}theorem c (n : ℕ) : n + 0 = n := by\n  ring_nf?\n": _answer(
        _message("info", 4, 2, 10, "Try this: ring_nf"),
        _message("warning", 3, 11, 12, "“n” is shadowed"),
    ),
    f"{_HEAD}theorem d (p q : Prop) : p ∧ q := by\n  constructor\n": _answer(
        _message("error", 3, 36, 38, "unsolved goals\ncase left\np q : Prop\n⊢ p")
    ),
    f"{_HEAD}theorem e : 1 = 2 := by\n  norm_num\n": _answer(
        _message("error", 4, 2, 10, "norm_num failed to prove the goal, it is False")
    ),
    f"{_HEAD}theorem f : 1 = 1 := by\n  sorry\n": _answer(
        _message("warning", 3, 8, 9, "declaration uses 'sorry'"),
        sorries=[
            {
                "pos": {"line": 4, "column": 2},
                "endPos": {"line": 4, "column": 7},
                "goal": "⊢ 1 = 1",
                "proofState": 0,
            }
        ],
    ),
    f"{_HEAD}theorem g : 2 ^ 99999 % 7 = 1 := by\n  decide\n": {
        "error": "Lean REPL command timed out in 60 seconds",
        "response": None,
    },
    "theorem without its imports": {
        "error": None,
        "response": {"message": "Unknown environment."},
    },
}


def recorded() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Those of the folder that the environment names."""
    if "RAGEN_JAX_KIMINA" not in os.environ:
        return
    folder = pathlib.Path(os.environ["RAGEN_JAX_KIMINA"])
    scripts = sorted(folder.glob("input/*.lean"))
    assert scripts, f"RAGEN_JAX_KIMINA={folder} has no input/NAME.lean"
    for path in scripts:
        text = (folder / f"output/{path.stem}.json").read_text()
        (result,) = json.loads(text)["results"]
        yield path.read_text(), result
