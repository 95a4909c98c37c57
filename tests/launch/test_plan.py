"""`launch.plan` as users call it."""

import shutil

import pytest

from launch import command
from ragen_jax.program.build import POCKET
from tests import commands


def test_a_configuration_that_fits(tmp_path):
    """A folder without weights will do."""
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        shutil.copy(POCKET / name, tmp_path)
    tiny = {k: v for k, v in commands.UNTESTED.items() if k != "rollout.max_turns"}
    words = commands.command(
        "plan",
        "--config=configs/sokoban.py",
        "--device=rtx-4090",
        f"--config.model.path={tmp_path}",
        "--config.rollout.max_turns=1",
        "--config.model.attention=cudnn",
        "--config.rollout.decode_attention=triton",
        *(f"--config.{key}={value}" for key, value in tiny.items()),
    )
    done = commands.call(words)
    assert done.returncode == 0, done.stderr
    assert "accuracy: estimated by formula for rtx-4090, within 25 %" in done.stdout
    assert "planned with model.attention = 'auto': 'cudnn' cannot be" in done.stdout
    assert "planned with rollout.decode_attention = 'auto': 'triton'" in done.stdout
    assert "837,760" in done.stdout
    assert "fits: 0.0" in done.stdout
    assert (
        max(
            map(len, done.stdout.split("bytes per")[1].split("accuracy")[0].split("\n"))
        )
        <= 80
    )
    assert "evaluation" not in done.stdout  # there is none in this run
    for word in ("optimizer moments", "gradients", "KV cache", "update", "temporary"):
        assert word in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--device=gtx-1"], "no device 'gtx-1'; choose one of t4, "),
        (["--config.model.path=/nowhere"], "there is no folder /nowhere"),
        (["--config.model.remat=layer"], "model.remat = 'layer'; choose one of"),
        (["--config.learner.microbatch_rows=5"], "is not a multiple of"),
        (["--target=gtx-1"], "no target 'gtx-1': programs are compiled for a100-80gb,"),
        (["--target=h100", "--topology=8"], "topology '8': use 1xHOSTSxGPUS"),
        (["--target=h100", "--topology=1x1x8"], "has 8 GPUs, but mesh.data x"),
        (
            ["--target=h100", "--topology=1x2x8", "--config.mesh.tensor=16"],
            "would split layers between hosts of 8 GPUs",
        ),
        (["--topology=1x1x8"], "--topology=1x1x8 needs --target"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(words, sentence):
    line = commands.command("plan", "--config=configs/sokoban.py", *words)
    done = commands.call(line)
    assert done.returncode == 2
    *_, first, second = done.stderr.strip().splitlines()
    assert sentence in first
    assert first.startswith("error: ")
    assert second == command.HINT
    assert not done.stdout
