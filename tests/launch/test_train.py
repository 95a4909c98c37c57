"""The commands as users call them: what they print, write and refuse."""

import json
import re

import numpy as np
import pytest

from configs import sokoban
from ragen_jax.models.hf.weights import load_checkpoint
from ragen_jax.runs.metrics import declared
from ragen_jax.train import train
from tests import commands


@pytest.fixture(scope="module")
def trained(tmp_path_factory, model):
    workdir = tmp_path_factory.mktemp("trained") / "run"
    words = commands.train_command(
        model, workdir, train__num_iterations=2, logging__sinks=("tensorboard",)
    )
    done = commands.run(words)
    assert done.returncode == 0, done.stderr
    return workdir


def test_a_run_leaves_what_the_readme_names(trained):
    lines = [
        json.loads(s) for s in (trained / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["iteration"] for line in lines] == [0, 1, 2]
    for name in (
        "train/Sokoban/success",
        "rollout/in_group_reward_std",
        "rollout/filter_kept_ratio",
        "actor/entropy",
        "actor/pg_clipfrac",
        "actor/grad_norm",
        "actor/sampler_log_prob_difference",
        "timing_s/rollout",
        "timing_s/update",
    ):
        assert name in lines[1]
    for name in (
        "perf/sampled_tokens_per_second",
        "perf/trained_tokens_per_second",
        "perf/time_share/update",
    ):
        assert name in lines[2]
        assert name not in lines[1]  # which compiles
    peaks = [line["perf/peak_memory_gib"] for line in lines[1:]]
    assert 0.1 < peaks[0] <= peaks[1]
    names = {name for line in lines for name in line} - {"iteration", "time"}
    assert [name for name in sorted(names) if declared(name) is None] == []
    for name in ("success", "success_low", "success_high", "ceiling", "regret"):
        assert f"val-env/Sokoban/{name}" in lines[0]
        assert f"val-env/Sokoban/{name}" in lines[2]
    assert lines[1]["actor/sampler_log_prob_difference"] <= 1e-5
    assert json.loads((trained / "config.json").read_text())["seed"] == 0
    assert list(trained.glob("events.out.tfevents.*"))
    episodes = (
        (trained / "trajectories/iteration_000002.jsonl").read_text().splitlines()
    )
    assert len(episodes) == 8
    assert json.loads(episodes[0])["turns"][0]["observation"].startswith("<|im_start|>")


def test_evaluate_a_run(trained, tmp_path):
    output = tmp_path / "episodes.jsonl"
    words = commands.command("evaluate", f"--run={trained}", f"--output={output}")
    done = commands.call(words)
    assert done.returncode == 0, done.stderr
    assert "95 % interval" in done.stdout
    assert "regret" in done.stdout
    assert (
        len(output.read_text().splitlines()) == commands.TINY["evaluation.num_prompts"]
    )
    # The same prompts and the same weights as at the end of training.
    last = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])
    shown = json.loads(
        done.stdout[done.stdout.index("{") : done.stdout.rindex("}") + 1]
    )
    assert shown == {k: v for k, v in last.items() if k.startswith("val-env/")}


@pytest.mark.slow
def test_evaluate_weights_in_hugging_face_layout(model):
    words = commands.command(
        "evaluate",
        "--config=configs/bandit.py",
        f"--config.model.path={model}",
        "--num_prompts=4",
        "--temperature=0",
    )
    done = commands.call(words)
    assert done.returncode == 0, done.stderr


def test_export_holds_the_trained_weights(trained, tmp_path, model):
    folder = tmp_path / "exported"
    words = f"--run={trained}", f"--output={folder}"
    done = commands.call(commands.command("export", *words))
    assert done.returncode == 0, done.stderr
    config, params = load_checkpoint(folder)
    before_config, before = load_checkpoint(model)
    assert config == before_config
    pairs = zip(commands.leaves_of(params), commands.leaves_of(before), strict=True)
    assert any(not np.array_equal(a, b) for a, b in pairs)
    assert (folder / "tokenizer.json").exists()
    assert "exists already" in commands.refusal("export", *words)


def test_watch_the_policy(trained):
    words = commands.command("play", f"--run={trained}", "--player=policy")
    done = commands.call(words)
    assert done.returncode == 0, done.stderr
    assert "turn 1 says: " in done.stdout
    assert "<|im_start|>" not in done.stdout
    assert "won after " in done.stdout or "won in " in done.stdout
    assert done.stdout.splitlines()[-1].startswith("best play: won in ")


@pytest.mark.slow
def test_play_in_person():
    """Bare answers and whole replies are read; leaving is not an error."""
    words = commands.command("play", "--config=configs/frozen_lake.py", "--raw")
    typed = "Left || Up\n</think><answer>Sideways</answer>\n"
    done = commands.call(words, typed=typed)
    assert done.returncode == 0, done.stderr
    assert "[2 actions run, reward 0, penalty 0]" in done.stdout
    assert "[0 actions run, reward 0, penalty -0.1]" in done.stdout
    assert "Invalid" in done.stdout
    assert "left the game" in done.stdout


BAD = {
    "unknown environment": ({"env.name": "chess"}, "sokoban"),
    "an action limit of 0": (
        {"rollout.max_actions_per_turn": 0},
        "rollout.max_actions_per_turn = 0",
    ),
    "groups that do not divide": ({"learner.minibatch_rows": 6}, "not a multiple"),
    "no such model": ({"model.path": "/nowhere/at/all"}, "/nowhere/at/all"),
    "a bad environment argument": ({"env.kwargs.boxes": 2}, "num_boxes"),
    "plans too many to solve": (
        {"env.name": "frozen_lake", "rollout.max_actions_per_turn": 10},
        "rollout: max_actions_per_turn=10 makes 4**10 plans per turn, too many to enum",
    ),
    "a bad environment parameter": ({"env.params.slip": 0.2}, "max_steps_in_episode"),
    "a dialogue beyond the model": ({"rollout.max_reply_tokens": 1000}, "2048"),
    "coordinates it cannot read": ({"env.kwargs.observation": "map"}, "grid_coord"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_settings_are_refused_before_anything_is_written(case, tmp_path, model):
    changes, words = BAD[case]
    config = commands.tiny_config(sokoban)
    config.unlock()
    config.update_from_flattened_dict({"model.path": str(model)} | changes)
    with pytest.raises(ValueError, match=re.escape(words)):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_unwritable_workdir(tmp_path, model):
    (tmp_path / "file").write_text("")
    done = commands.call(commands.train_command(model, tmp_path / "file/run"))
    assert done.returncode == 2
    assert "cannot write to the run folder" in done.stderr


def test_a_checkpoint_of_another_model(trained, tmp_path, model):
    """Someone swaps the weights under a run that is then resumed."""
    other = commands.tiny_model(tmp_path / "other", hidden_size=48, head_dim=24)
    config = json.loads((trained / "config.json").read_text())
    moved = tmp_path / "run"
    commands.copy(trained, moved)
    config["model"]["path"] = str(other)
    (moved / "config.json").write_text(json.dumps(config))
    said = commands.refusal("evaluate", f"--run={moved}")
    assert "was trained with another model" in said
    assert "hidden_size: 32 there, 48 here" in said


def test_a_damaged_checkpoint(trained, tmp_path):
    moved = tmp_path / "run"
    commands.copy(trained, moved)
    for path in (moved / "checkpoints").rglob("*"):
        if path.is_file() and "state" in path.parts and path.stat().st_size > 1000:
            path.write_bytes(path.read_bytes()[:100])
    assert "is damaged" in commands.refusal("evaluate", f"--run={moved}")
