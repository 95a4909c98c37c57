"""Several environments in one run, each of them as if it was alone."""

import json
import re

import chex
import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from configs import bandit, base, mix, sokoban
from ragen_jax import config as config_lib
from ragen_jax import rngs
from ragen_jax.diagnostics.early_stopping import stop_reason
from ragen_jax.evaluation.evaluate import evaluate
from ragen_jax.evaluation.load import open_trained
from ragen_jax.program.build import build_program
from ragen_jax.rollout.keys import rollout_keys
from ragen_jax.runs import reader
from ragen_jax.runs.console import Display
from ragen_jax.tasks.specs import env_specs
from ragen_jax.train import train
from tests import commands

# One of them is the cheapest to compile.
MIX = (("sokoban", 2), ("bandit", 1))
STEP = rngs.step_key(rngs.root_key(0), 0)


def mixed_config(model="pocket", **changes):
    changes = {"env__mix": MIX, "rollout__num_groups": 3} | changes
    return commands.tiny_config(mix, model, **changes)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    return commands.tiny_model(folder, num_key_value_heads=2)


@pytest.fixture(scope="module")
def mixed(model):
    return build_program(mixed_config(model))


@pytest.fixture(scope="module")
def alone(model):
    """Each environment's own program, with as many groups as it has in the mix."""
    games = {"Sokoban": ("sokoban", 2), "Bandit": ("bandit", 1)}
    return {
        name: build_program(
            commands.tiny_config(
                sokoban, model, env__name=game, rollout__num_groups=groups
            )
        )
        for name, (game, groups) in games.items()
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory, model):
    workdir = tmp_path_factory.mktemp("mixed") / "run"
    config = mixed_config(model, train__num_iterations=2)
    assert train(config, workdir) == 0
    return workdir


@pytest.mark.slow
def test_each_environment_plays_as_if_it_was_alone(mixed, alone):
    params = mixed.state.params
    rollouts = mixed.collect(params, STEP)
    assert mixed.names == ("Sokoban", "Bandit")
    for i, name in enumerate(mixed.names):
        (expected,) = alone[name].collect(params, rngs.environment_key(STEP, i))
        chex.assert_trees_all_equal(rollouts[i], expected)
    batch = mixed.join(rollouts)
    assert batch.tokens.shape[0] == 12
    np.testing.assert_array_equal(batch.env_index, [0] * 8 + [1] * 4)


@pytest.mark.slow
def test_validation_is_that_of_each_environment_alone(mixed, alone):
    """On the same prompts: numbers of a mix compare with those of single runs."""
    params = mixed.state.params
    metrics, rollouts = evaluate(mixed, params)
    expected, episodes = {}, []
    for name in mixed.names:
        own, (rollout,) = evaluate(alone[name], params)
        expected |= own
        episodes += [e | {"environment": name} for e in alone[name].episodes([rollout])]
    assert metrics == expected
    assert mixed.episodes(rollouts) == episodes
    assert {key.split("/")[1] for key in metrics} == set(mixed.names)


def test_random_streams_do_not_collide():
    """Of three environments, and with those of the iteration itself."""
    keys = [rngs.stream(STEP, name) for name in rngs.STREAMS]
    for index in range(3):
        rollout = rollout_keys(rngs.environment_key(STEP, index), 4, 2)
        keys += [*rollout.level, *rollout.noise, *rollout.sample]
    data = {tuple(jax.random.key_data(key).tolist()) for key in keys}
    assert len(data) == len(keys) == len(rngs.STREAMS) + 3 * 20
    first = rollout_keys(rngs.environment_key(STEP, 0), 4, 2)
    chex.assert_trees_all_equal(first, rollout_keys(STEP, 4, 2))


@pytest.mark.slow
def test_eight_devices_play_the_same(model):
    """Tokens, masks and rewards; log-probabilities up to rounding."""
    second = {"kwargs": {"split": "test"}, "label": "Test"}
    settings = {
        "env__mix": (("bandit", 1), ("bandit", 1, second)),
        "rollout__num_groups": 2,
        "rollout__group_size": 8,
        "rollout__max_turns": 1,
        "learner__minibatch_rows": 8,
        "learner__microbatch_rows": 8,
        "evaluation__num_prompts": 8,
    }
    batches = []
    for axes in ({}, {"mesh__data": 4, "mesh__fsdp": 2}):
        program = build_program(mixed_config(model, **settings, **axes))
        rollouts = program.collect(program.state.params, STEP)
        batches.append(program.join(rollouts))
    assert [len(b.tokens.sharding.device_set) for b in batches] == [1, 8]
    log_probs = [b.sample_log_probs for b in jax.device_get(batches)]
    chex.assert_trees_all_close(*log_probs, atol=1e-5)
    same = [b.replace(sample_log_probs=None) for b in jax.device_get(batches)]
    chex.assert_trees_all_equal(*same)


@pytest.mark.slow
def test_an_interrupted_run_is_the_uninterrupted_one(trained, model, tmp_path, capsys):
    workdir = tmp_path / "run"
    for iterations in (1, 2):
        config = mixed_config(model, train__num_iterations=iterations)
        assert train(config, workdir) == 0
    # A finished run says again what it ended with.
    assert train(config, trained) == 0
    said = capsys.readouterr().out
    first, resumed, whole = re.findall(r"^params sha256 \w+$", said, re.M)
    assert first != resumed == whole
    assert re.search(r"^Sokoban: held-out success .* -> ", said, re.M)
    assert re.search(r"^Bandit: success on validation levels .* -> ", said, re.M)
    again, whole = commands.record_of(workdir), commands.record_of(trained)
    # The first part ended with an evaluation of its own.
    assert again["metrics"][1].items() >= whole["metrics"][1].items()
    del again["metrics"][1], whole["metrics"][1]
    assert again == whole
    with pytest.raises(ValueError, match=r"env\.mix"):
        train(mixed_config(model, env__mix=MIX[::-1]), workdir)


@pytest.mark.slow
def test_a_run_reports_every_environment(trained):
    record = reader.read_metrics(trained)[-1]
    for name in ("Sokoban", "Bandit"):
        assert f"train/{name}/success" in record
        assert f"train/{name}/pass@4" in record
        assert f"val-env/{name}/regret" in record
    files = commands.record_of(trained)["trajectories"]
    assert files["iteration_000002.jsonl"].count('"environment": "Bandit"') == 4
    assert files["iteration_000002.jsonl"].count('"environment": "Sokoban"') == 8


@pytest.mark.slow
def test_one_of_them_can_be_picked(trained):
    opened = open_trained(trained, None)
    assert opened.program.task.name == "Sokoban"
    assert opened.only("bandit").program.names == ("Bandit",)
    with pytest.raises(ValueError, match="it has Sokoban, Bandit"):
        opened.only("frozen_lake")


@pytest.mark.slow
def test_evaluate_prints_a_line_each(trained, tmp_path):
    output = tmp_path / "episodes.jsonl"
    words = commands.command("evaluate", f"--run={trained}", f"--output={output}")
    done = commands.call(words)
    assert done.returncode == 0, done.stderr
    assert "Sokoban, Bandit, 4 prompts\n1/2 Sokoban: success " in done.stdout
    assert "\n2/2 Bandit: success " in done.stdout
    assert output.read_text().count('"environment": "Bandit"') == 4


def test_the_display_has_them_side_by_side(capsys):
    metrics = {"train/A/success": 0.25, "train/B/success": 0.5, "actor/entropy": 1.0}
    with Display(("A", "B"), start=0, total=3) as display:
        display.iteration(1, metrics)
    assert "side by side: A / B" in (said := capsys.readouterr().out)
    assert "success 25.0% / 50.0%  entropy 1.000" in said


def test_a_run_that_learns_one_of_two_games_goes_on():
    names = ("val-env/A/success", "val-env/B/success")
    off = {"max_empty_iterations": 5, "min_spread_fraction": None, "collapse_window": 9}
    options = off | {"success_names": names, "min_success": 0.1, "failure_window": 2}
    records = [dict.fromkeys(names, 0.0), {names[0]: 0.0, names[1]: 0.5}]
    assert stop_reason(records, **options) is None
    assert "min_success" in stop_reason(records[:1] * 2, **options)


def test_entries_have_settings_of_their_own(model):
    second = {"kwargs": {"num_boxes": 2}, "params": {"max_steps_in_episode": 7}}
    entries = (("sokoban", 2), ("sokoban", 1, second | {"label": "TwoBoxes"}))
    config = mixed_config(model, env__mix=entries)
    again = ConfigDict(json.loads(config_lib.to_json(config)))
    assert env_specs(again) == env_specs(config)
    assert config_lib.changed_keys(again, config) == {}
    program = build_program(config)
    assert program.names == ("Sokoban", "TwoBoxes")
    assert [task.env.num_boxes for task in program.tasks] == [1, 2]
    assert program.tasks[1].params.max_steps_in_episode == 7
    with pytest.raises(ValueError, match="two entries named 'Sokoban'"):
        build_program(mixed_config(model, env__mix=(("sokoban", 2), ("sokoban", 1))))
    bad = (("sokoban", 2), ("frozen_lake", 1, {"params": {"slip": 1}}))
    with pytest.raises(ValueError, match=r"env\.mix\[1\]\.params\.slip: FrozenLake"):
        build_program(mixed_config(model, env__mix=bad))


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ((), "at least two entries"),
        ((("sokoban", 16),), "a single environment is env.name"),
        (("sokoban", 16), "at least two entries"),
        ((("sokoban",), ("bandit", 8)), "env.mix[0] = ('sokoban',)"),
        ((("sokoban", 0), ("bandit", 16)), "at least 1"),
        ((("sokoban", 8.0), ("bandit", 8)), "whole number"),
        ((("sokoban", 8), ("bandit", 4)), "set --config.rollout.num_groups=12"),
        ((("sokoban", 8, "big"), ("bandit", 8)), "not a dict"),
        ((("sokoban", 8, {"boxes": 1}), ("bandit", 8)), "are kwargs, params, label"),
        ((("sokoban", 8, {"kwargs": 1}), ("bandit", 8)), "must be a dict"),
        ((("sokoban", 8, {"label": "a/b"}), ("bandit", 8)), "metric names"),
    ],
)
def test_a_broken_entry_is_refused(entries, words):
    config = base.get_config()
    config.env.mix = entries
    with pytest.raises(ValueError, match=re.escape(words)):
        config_lib.validate(config)


def test_what_contradicts_a_mix_is_refused():
    config = base.get_config()
    config.env.mix = (("sokoban", 8), ("bandit", 8))
    config_lib.validate(config)
    with pytest.raises(ValueError, match=r"it is read only if env\.mix is None"):
        config_lib.validate(config, ["env.name"])
    config.rollout.group_size = 3
    config.env.mix = (("sokoban", 15), ("bandit", 1))
    config.mesh.data = 2
    with pytest.raises(ValueError, match=r"'sokoban': .* = 45 rows .*multiple of 2"):
        config_lib.validate(config)
    config = base.get_config()
    config.env.mix = (("sokoban", 8), ("bandit", 8))
    config.env.kwargs.unlock()
    config.env.kwargs.num_boxes = 2
    with pytest.raises(ValueError, match=r"env\.kwargs\.num_boxes belongs to the sing"):
        config_lib.validate(config)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_groups", "group_size", "advantage"),
    [
        (1, 32, "grpo"),
        (32, 1, "reinforce_plus_plus"),
        (32, 1, "gae"),
    ],
)
def test_the_extreme_layouts_of_groups(
    num_groups, group_size, advantage, model, tmp_path
):
    """The same rows in groups of one and in one group, with estimators that suit."""
    config = commands.tiny_config(
        bandit,
        model,
        rollout__num_groups=num_groups,
        rollout__group_size=group_size,
        rollout__max_turns=1,
        algo__advantage=advantage,
        learner__minibatch_rows=16,
        learner__microbatch_rows=16,
        train__num_iterations=1,
        evaluation__every=None,
    )
    assert train(config, tmp_path / "run") == 0
    (record,) = reader.read_metrics(tmp_path / "run")
    assert record["actor/num_minibatches"] == 2
    assert record["rollout/filter_kept_rows"] == 32
    assert record["actor/grad_norm"] > 0
    assert f"train/Bandit/pass@{group_size}" in record
