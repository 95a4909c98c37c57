"""It learns: success on held-out levels rises, with the presets that a user gets.

The numbers of iterations are far below the presets' own. An agent that learned nothing
stays at its start, known from 256 levels; passing the bounds by luck would take five
standard deviations of that share (once in three million runs).
"""

import json

import pytest

from ragen_jax.runs.reader import read_metrics
from tests import commands

NUM_PROMPTS = 256


@pytest.mark.parametrize(
    ("game", "estimator", "num_iterations", "start", "least"),
    [
        # Measured in 10 iterations: 98.8 %.
        ("bandit", "grpo", 10, 0.395, 0.75),
        # Measured in 6 iterations: 51.6 %.
        pytest.param("sokoban", "ppo", 6, 0.27, 0.42, marks=pytest.mark.slow),
    ],
)
def test_success_rises(game, estimator, num_iterations, start, least, tmp_path):
    deviation = (start * (1 - start) / NUM_PROMPTS) ** 0.5
    assert least > start + 5 * deviation
    words = commands.command(
        "train",
        f"--config=configs/{game}.py:pocket,{estimator}",
        f"--workdir={tmp_path}",
        f"--config.train.num_iterations={num_iterations}",
        f"--config.evaluation.every={num_iterations}",
        f"--config.evaluation.num_prompts={NUM_PROMPTS}",
        # They change nothing of what is learned.
        "--config.diagnostics.every=None",
        "--config.logging.trajectories_every=None",
        "--config.logging.sinks=()",
    )
    done = commands.run(words, timeout=900, optimized=True)
    assert done.returncode == 0, done.stderr
    records = read_metrics(tmp_path)
    (name,) = (k for k in records[0] if k.endswith("/success") and "val-env" in k)
    before, after = records[0][name], records[-1][name]
    assert before == pytest.approx(start, abs=0.05), json.dumps(records[0])
    assert after > least, [
        record[f"train/{name.split('/')[1]}/success"] for record in records[1:]
    ]
