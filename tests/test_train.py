"""The loop itself, in this process: early stops, resuming them, reused rollouts."""

import dataclasses
import json
import types

import jax.numpy as jnp
import pytest
from ml_collections import ConfigDict

from configs import bandit
from ragen_jax import train as train_module
from ragen_jax.evaluation.load import open_trained
from ragen_jax.program.build import Program
from ragen_jax.rollout.host.rows import GamesFailed
from ragen_jax.runs.run import digest
from ragen_jax.sweeps.programs import Programs
from ragen_jax.train import train
from tests import commands
from tests.trajectories import make_trajectory


def tiny_config(model, **changes):
    """Two groups of four, one short turn, no evaluation."""
    usual = {
        "rollout__max_turns": 1,
        "evaluation__every": None,
        "checkpoint__every": 100,
        "logging__trajectories_every": 2,
        "logging__trajectories_per_iteration": 3,
    }
    return commands.tiny_config(bandit, model, **usual | changes)


@pytest.fixture(autouse=True, scope="module")
def shared_programs(model):
    """Runs that play and learn alike share what is compiled, whatever else differs."""
    usual, programs = tiny_config(model), Programs(num_kept=3)

    def start(config, overrides=()):
        alike = config.copy_and_resolve_references()
        with alike.ignore_type():
            for section in ("train", "checkpoint", "logging", "evaluation"):
                alike[section] = usual[section]
            alike.learner.updates_per_rollout = 1
        return programs.start(alike)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_module, "build_program", start)
        yield


def iterations(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["iteration"] for line in lines]


@pytest.mark.slow
def test_a_run_that_keeps_nothing_stops_and_stays_stopped(model, tmp_path, capsys):
    """Random replies earn nothing: no group spreads, and such groups are left out."""
    workdir = tmp_path / "run"
    config = tiny_config(model, filter__keep_zero=False, train__max_empty_iterations=2)
    said = []
    for _ in range(2):
        assert train(config, workdir) == 0
        said.append(capsys.readouterr().out)
        assert iterations(workdir) == [1, 2]
        assert [p.name for p in (workdir / "checkpoints").iterdir()] == ["2"]
    (file,) = (workdir / "trajectories").iterdir()
    assert file.name == "iteration_000002.jsonl"
    assert len(file.read_text().splitlines()) == 3
    reason = "stopped early after iteration 2: the filter kept nothing in 2 iterations"
    assert all(reason in text for text in said)
    digests = [text.split("sha256 ")[1].split()[0] for text in said]
    assert digests[0] == digests[1]
    # The limits may be changed: they say when to stop, not what is learned.
    config.train.max_empty_iterations = 3
    assert train(config, workdir) == 0
    assert "stopped early after iteration 3" in capsys.readouterr().out
    assert iterations(workdir) == [1, 2, 3]


@pytest.mark.slow
def test_rollouts_are_reused(model, tmp_path, capsys):
    digests = set()
    for count in (1, 2):
        config = tiny_config(
            model, train__num_iterations=1, learner__updates_per_rollout=count
        )
        assert train(config, tmp_path / str(count)) == 0
        digests.add(capsys.readouterr().out.split("sha256 ")[1].split()[0])
    assert len(digests) == 2


def say_of_updates(monkeypatch, **stats):
    """Updates change nothing and report these numbers."""
    stats = {
        "actor/consecutive_skipped": jnp.float32(0),
        "actor/sampler_log_prob_difference": jnp.float32(0),
    } | {f"actor/{name}": jnp.float32(value) for name, value in stats.items()}

    build_program = train_module.build_program

    def build(config, overrides):
        program = build_program(config, overrides)
        return dataclasses.replace(
            program, update=lambda state, *_: (state, stats, None)
        )

    monkeypatch.setattr(train_module, "build_program", build)


@pytest.mark.slow
def test_a_sampler_that_is_another_policy_ends_the_run(model, tmp_path, monkeypatch):
    say_of_updates(monkeypatch, sampler_log_prob_difference=0.2)
    config = tiny_config(model, train__num_iterations=1)
    with pytest.raises(ValueError, match=r"by 0.2 on average, more than .* = 0.1"):
        train(config, tmp_path / "run")
    # Later updates of a rollout compare other parameters than the sampler's.
    for i, changes in enumerate(
        (
            {"train__max_sampler_difference": 0.3},
            {"train__max_sampler_difference": None},
            {"learner__updates_per_rollout": 2},
        )
    ):
        config = tiny_config(model, train__num_iterations=1, **changes)
        assert train(config, tmp_path / str(i)) == 0


@pytest.mark.slow
def test_gradients_that_stay_not_finite_end_the_run(model, tmp_path, monkeypatch):
    say_of_updates(monkeypatch, consecutive_skipped=2)
    config = tiny_config(model, train__max_skipped_updates=2)
    with pytest.raises(ValueError, match="2 updates in a row had a non-finite"):
        train(config, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("reward", [1e20, -3e38, float("nan"), float("inf")])
def test_rewards_that_overflow_are_refused(reward):
    task = types.SimpleNamespace(name="Mine")
    config = ConfigDict({"env": {"host": None}, "rollout": {"group_size": 2}})
    program = types.SimpleNamespace(tasks=[task])
    rollouts = [make_trajectory([reward, 0.0])]
    with pytest.raises(ValueError, match=r"Mine paid .* in an episode; rewards must"):
        train_module._rollout_metrics(program, rollouts, config)


@pytest.mark.parametrize("when", ["rollout", "evaluation"])
def test_games_that_fail_end_a_run_that_is_saved(model, tmp_path, monkeypatch, when):
    """Also where that iteration's checkpoint was there already."""

    rollouts = []

    def fail_sometimes(play):
        def played(self, *args):
            rollouts.append(args)
            if when == "evaluation" or len(rollouts) == 3:
                raise GamesFailed("5 of 8 games failed")
            return play(self, *args)

        return played

    name = "collect" if when == "rollout" else "collect_validation"
    failing = fail_sometimes(getattr(Program, name))

    config = tiny_config(model, train__num_iterations=4, checkpoint__every=1)
    with monkeypatch.context() as patch:
        patch.setattr(Program, name, failing)
        if when == "evaluation":
            assert train(config, tmp_path / "run") == 0
            config.train.num_iterations = 6
            with config.ignore_type():
                config.evaluation.every = 6
        with pytest.raises(GamesFailed, match="5 of 8 games failed"):
            train(config, tmp_path / "run")
    done = {"rollout": 2, "evaluation": 6}[when]
    assert iterations(tmp_path / "run") == list(range(1, done + 1))
    saved = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert str(done) in saved
    if when == "rollout":
        assert train(config, tmp_path / "run") == 0
        assert iterations(tmp_path / "run") == [1, 2, 3, 4]


@pytest.mark.slow
def test_the_policy_that_evaluated_best_is_saved_and_opened(
    model, tmp_path, monkeypatch, capsys
):
    scores, evaluated = iter([0.25, 0.125, 0.75, 0.5, 0.75]), []

    def evaluate(program, params):
        evaluated.append(digest(params))
        return {"val-env/Bandit/success": next(scores)}, ()

    monkeypatch.setattr(train_module, "evaluate", evaluate)
    config = tiny_config(
        model,
        train__num_iterations=4,
        evaluation__every=1,
        checkpoint__keep=1,
        checkpoint__keep_best="success",
    )
    assert train(config, tmp_path / "run") == 0
    assert "by success: iteration 2 (75.0% against 75.0%" in capsys.readouterr().out
    saved = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert saved == {"2", "4"}
    for name, iteration in (("best", 2), ("last", 4), ("2", 2)):
        trained = open_trained(tmp_path / "run", None, checkpoint=name)
        assert trained.iteration == iteration
        assert digest(trained.params) == evaluated[iteration]
    assert len(set(evaluated)) == 5
