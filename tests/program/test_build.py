"""What a run is built from: the remembered ceiling, the warning, the summary."""

import os
import signal
import types

import jax.numpy as jnp
import pytest

from configs import sokoban
from envs import base
from ragen_jax import train
from ragen_jax.program import build as program
from ragen_jax.runs import reader
from ragen_jax.runs.run import _gain
from tests import commands


def test_levels_are_solved_once():
    asked = []

    def solve(states, params, *, budget, discount):
        asked.append(states)
        values = states["board"]
        return base.Solution(values, values[:, 1], best_success=values[:, 0])

    given = {"solves": base.EXACT, "solves_on_device": True}
    env = types.SimpleNamespace(solve=solve, **given)
    ceiling = base.make_ceiling(env, 0, 0)
    one, other = jnp.array([[1.0, 5.0], [0.0, 5.0]]), jnp.ones((2, 2))
    assert [ceiling({"board": b}) for b in (one, one + 0, other)] == [0.5, 0.5, 1.0]
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("first_ids", "style", "boards", "warns"),
    [
        (0, "terse", "symbols", False),
        (33, "terse", "symbols", True),
        (33, "terse", "rows", False),
        (33, "full", "symbols", False),
    ],
)
def test_a_real_model_under_the_pocket_preset(first_ids, style, boards, warns, capsys):
    """Published tokenizers of bytes begin with "!", the pocket model's with byte 0."""
    config = sokoban.get_config()
    config.prompt.style, config.prompt.tokenization = style, boards
    spelled = [bytes([(first_ids + i) % 256]) for i in range(256)]
    program.warn_of_pocket_settings(config, types.SimpleNamespace(token_bytes=spelled))
    said = capsys.readouterr().err
    assert ("use a preset of configs/sizes.py" in said) == warns
    assert said.count("\n") == warns


def measured(iteration, success, **ways):
    settings = {"num_prompts": 256.0, "temperature": 0.5, "seed": 123.0} | ways
    values = settings | {"success": success}
    return {"iteration": iteration} | {f"val-env/X/{k}": v for k, v in values.items()}


def test_the_summary_compares_only_what_was_measured_alike():
    records = [measured(0, 0.25), {"iteration": 1}, measured(2, 0.5)]
    assert _gain(records, "val-env/X/") == "held-out success 25.0% -> 50.0%"
    records.append(measured(3, 0.75, temperature=0.0))
    said = _gain(records, "val-env/X/")
    assert "25.0% (num_prompts 256, temperature 0.5, seed 123) before" in said
    assert "75.0% (num_prompts 256, temperature 0, seed 123) after" in said
    assert "do not compare" in said
    known = [measured(i, 0.5, held_out=0.0) for i in range(2)]
    assert "validation levels (training may play them, too) 50.0%" in _gain(
        known, "val-env/X/"
    )
    assert "no evaluation" in _gain([{"iteration": 1}], "val-env/X/")


@pytest.mark.parametrize(
    ("keep_best", "words"),
    [
        (None, "stopped before the first iteration; the same command starts again"),
        ("success", "stopped after 0 of 5 iterations, all saved; the same command re"),
    ],
)
def test_a_signal_during_the_first_evaluation_stops_the_run(
    tmp_path, monkeypatch, capsys, keep_best, words
):
    def interrupted(program, params):
        os.kill(os.getpid(), signal.SIGTERM)
        return {"val-env/Sokoban/success": 0.0}, None

    monkeypatch.setattr(train, "evaluate", interrupted)
    config = sokoban.get_config()
    with config.ignore_type():
        changes = {"checkpoint.keep_best": keep_best}
        config.update_from_flattened_dict(commands.TINY | changes)
    assert train.train(config, tmp_path / "run") == 143
    assert words in capsys.readouterr().out
    assert [r["iteration"] for r in reader.read_metrics(tmp_path / "run")] == [0]
