"""The fields of an episode's record: who reads undeclared ones, and what is refused."""

import pathlib
import re

import pytest

from ragen_jax import report
from ragen_jax.rollout.record_fields import EPISODE, KINDS, TURN, wrong_field

# What the report adds to a record, and members of JavaScript's own objects.
ADDED = {"run", "iteration"}
BUILT_IN = {"target", "key", "preventDefault"}


def test_every_field_is_of_a_kind():
    assert {field.kind for field in (EPISODE | TURN).values()} == KINDS.keys()


def test_the_viewer_reads_declared_fields_alone():
    """In its scripts `e` is an episode, `t` and `turn` are turns."""
    folder = pathlib.Path(report.__file__).parent / "static"
    text = "".join(
        (folder / f"{n}.js").read_text() for n in ("viewer", "turn", "board")
    )
    read = {
        name: set(re.findall(rf"\b(?:{name})\.(\w+)", text)) for name in ("e", "t|turn")
    }
    assert {"turns", "success", "kept"} <= read["e"] <= {*EPISODE, *ADDED, *BUILT_IN}
    assert {"reply", "board", "token_texts"} <= read["t|turn"] <= TURN.keys()


@pytest.mark.parametrize(
    ("values", "needed", "filled", "said"),
    [
        ({"reward": None}, ["reward"], [], None),
        ({"reward": None}, [], ["reward"], "reward is missing or null"),
        ({}, ["reward"], [], "reward is missing"),
        ({"reply": None}, [], [], "reply is null"),
        ({"has_format": 1}, [], [], "has_format is not true or false"),
        ({"valid": True}, [], [], "valid is not a whole number"),
        ({"actions": [0, float("inf")]}, [], [], "actions is not a list of finite"),
        ({"board": ["##", "#"]}, [], [], "board is not rows of symbols of equal"),
        # Of a policy that diverged: null stands for NaN.
        ({"token_log_probs": [-1.0, None], "advantage": None}, [], [], None),
        ({"a later version's": object()}, [], [], None),
        ([], [], [], "not a JSON object"),
    ],
)
def test_the_first_wrong_field_is_named(values, needed, filled, said):
    found = wrong_field(values, TURN, needed=needed, filled=filled)
    assert found == said or found.startswith(said)
