"""Opened policies: on fewer devices, for another task, with other model files."""

import copy
import json
import shutil

import jax
import numpy as np
import pytest

from configs import bandit, base, pocket, sokoban
from ragen_jax.config import to_json
from ragen_jax.evaluation.load import open_trained, read_run_config
from ragen_jax.evaluation.terminal.episodes import watch_policy
from ragen_jax.models.hf.weights import load_checkpoint, save_checkpoint
from ragen_jax.program.build import build_program
from tests import commands
from tests.commands import tiny_config


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    return commands.tiny_model(folder, num_key_value_heads=2)


@pytest.fixture(scope="module")
def run_on_eight_devices(tmp_path_factory, model):
    """A run folder with the first checkpoint of a run that is split every way."""
    workdir = tmp_path_factory.mktemp("runs") / "run"
    config = tiny_config(
        sokoban,
        model__path=str(model),
        mesh__data=2,
        mesh__fsdp=2,
        mesh__tensor=2,
        prompt__tokenization="rows",
    )
    with commands.open_run(config, workdir, build_program(config)) as run:
        assert len(jax.tree.leaves(run.state.params)[0].sharding.device_set) == 8
        run.save(1, run.state)
        run.finish()
    return workdir


@pytest.mark.slow
def test_eight_devices_learned_and_one_plays(run_on_eight_devices, model):
    trained = open_trained(run_on_eight_devices, None)
    leaves = jax.tree.leaves(trained.params)
    assert {len(leaf.sharding.device_set) for leaf in leaves} == {1}
    _, expected = load_checkpoint(model)
    for ours, theirs in zip(leaves, jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert watch_policy(trained, 0).turns.played.any()


@pytest.mark.slow
def test_a_machine_with_one_device_exports_it(run_on_eight_devices, model, tmp_path):
    output = tmp_path / "exported"
    words = commands.command(
        "export", f"--run={run_on_eight_devices}", f"--output={output}"
    )
    done = commands.run(words)
    assert done.returncode == 0, done.stderr
    for ours, theirs in zip(
        commands.leaves_of(load_checkpoint(output)[1]),
        commands.leaves_of(load_checkpoint(model)[1]),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("is_run", [True, False])
def test_what_plays_holds_the_policy_alone(run_on_eight_devices, model, is_run):
    """No moments, no critic; the parameters are the checkpoint's."""
    config = None if is_run else tiny_config(sokoban, model__path=str(model))
    trained = open_trained(run_on_eight_devices if is_run else None, config)
    state = jax.tree.leaves(trained.program.state)
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in state)
    jax.tree.map(
        np.testing.assert_array_equal, trained.params, load_checkpoint(model)[1]
    )


def test_more_devices_when_asked_for(run_on_eight_devices):
    config = tiny_config(sokoban, mesh__data=2)
    trained = open_trained(run_on_eight_devices, config, overrides=["mesh.data"])
    leaf = jax.tree.leaves(trained.params)[0]
    assert len(leaf.sharding.device_set) == 2


def test_sections_of_play_come_from_the_config_and_all_others_from_the_run(
    run_on_eight_devices, model
):
    config = tiny_config(bandit, rollout__max_turns=1, evaluation__num_prompts=6)
    trained = open_trained(run_on_eight_devices, config)
    assert trained.program.task.env.name == "Bandit"
    assert trained.program.task.rules.budget.max_turns == 1
    assert trained.config.evaluation.num_prompts == 6
    assert trained.config.prompt.tokenization == "rows"
    assert trained.config.model.path == str(model)


@pytest.mark.slow
def test_options_of_training_alone_are_unset(model, tmp_path):
    """Bandit has no landmarks, and its evaluations fall where they like."""
    config = tiny_config(
        sokoban,
        model__path=str(model),
        bonus__facts=0.5,
    )
    with commands.open_run(config, tmp_path, build_program(config)) as run:
        run.save(5, run.state)
        run.finish()
    # As a run leaves it that asked for a GPU's attention.
    left = tmp_path / "config.json"
    written = json.loads(left.read_text())
    written["model"]["attention"] = "cudnn"
    left.write_text(json.dumps(written))
    trained = open_trained(tmp_path, tiny_config(bandit))
    assert watch_policy(trained, 0).turns.played.any()
    assert open_trained(tmp_path, None).program.task.rules.bonus is None


@pytest.mark.parametrize("key", ["model.path", "prompt.style", "prompt"])
def test_the_model_s_own_settings_cannot_be_overridden(run_on_eight_devices, key):
    with pytest.raises(ValueError, match=rf"--config\.{key} cannot be used with --run"):
        open_trained(run_on_eight_devices, tiny_config(bandit), overrides=[key])


def test_overrides_without_effect_are_refused():
    config = tiny_config(sokoban)
    with pytest.raises(ValueError, match="no effect"):
        open_trained(None, config, overrides=["prompt.length_hint_words"])


def test_a_warm_start_s_folder_says_what_to_do(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.json").write_text(to_json(pocket.get_config()))
    with pytest.raises(ValueError, match=r"warm start.*in \S+/model: .*--policy, "):
        open_trained(tmp_path, None)
    with pytest.raises(ValueError, match=r"nor one of its checkpoints.*--policy=FOLD"):
        open_trained(tmp_path / "model", None)


def test_another_command_s_configuration_is_refused(run_on_eight_devices):
    with pytest.raises(ValueError, match="not a training configuration"):
        open_trained(run_on_eight_devices, pocket.get_config())


def test_a_run_s_configuration_is_completed_and_its_types_are_checked(tmp_path):
    config = sokoban.get_config().to_dict()
    del config["diagnostics"], config["rollout"]["temperature"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    completed = read_run_config(tmp_path, base.get_config())
    assert completed.rollout.temperature == 1.0
    defaults = base.get_config().diagnostics.to_dict()
    assert completed.diagnostics.to_dict() == defaults
    for section, key, value in (
        ("prompt", "thinking", "yes"),
        ("rollout", "max_turns", True),
        ("rollout", "max_turns", {"a": 1}),
        ("optimizer", "learning_rate", [1.0]),
        ("rollout", "top_k", {"a": 1}),
        ("env", "name", 3),
    ):
        wrong = copy.deepcopy(config)
        wrong[section][key] = value
        (tmp_path / "config.json").write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match=rf"{section}\.{key} = .* must be of the"):
            read_run_config(tmp_path, base.get_config())
    (tmp_path / "config.json").write_text(json.dumps(config | {"train": 5}))
    with pytest.raises(ValueError, match="train = 5 must be of the type"):
        read_run_config(tmp_path, base.get_config())


def test_another_tokenizer_is_refused(model, tmp_path):
    moved = tmp_path / "model"
    commands.copy_model(model, moved)
    config = tiny_config(sokoban, model__path=str(moved))
    workdir = tmp_path / "run"
    with commands.open_run(config, workdir, build_program(config)) as run:
        run.save(1, run.state)
        run.finish()
    with (moved / "tokenizer.json").open("a") as file:
        file.write("\n")
    with pytest.raises(ValueError, match="trained with another tokenizer"):
        open_trained(workdir, None)


@pytest.mark.parametrize(
    ("changes", "is_needed"),
    [({}, False), ({"lora__rank": 2}, True), ({"kl__placement": "loss"}, True)],
)
def test_another_frozen_model_is_refused_where_one_is_needed(
    model, tmp_path, changes, is_needed
):
    moved = tmp_path / "model"
    commands.copy_model(model, moved)
    config = tiny_config(sokoban, model__path=str(moved), **changes)
    workdir = tmp_path / "run"
    with commands.open_run(config, workdir, build_program(config)) as run:
        run.save(1, run.state)
        run.finish()
    description, params = load_checkpoint(moved)
    halved = jax.tree.map(lambda x: x / 2, params)
    save_checkpoint(tmp_path / "other", description, halved)
    shutil.copy(tmp_path / "other" / "model.safetensors", moved)
    if is_needed:
        with pytest.raises(ValueError, match="trained with another frozen model"):
            open_trained(workdir, None)
    else:
        trained = open_trained(workdir, None)
        jax.tree.map(np.testing.assert_array_equal, trained.params, params)


def test_resuming_holds_one_state(model, tmp_path):
    config = tiny_config(sokoban, model__path=str(model))
    with commands.open_run(config, tmp_path, build_program(config)) as run:
        run.record(1, {"actor/entropy": 1.0})
        run.save(1, run.state)
        run.finish()
    program = build_program(config)
    with commands.open_run(config, tmp_path, program) as run:
        assert run.start == 1
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(program.state))
        assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(run.state))


def test_a_run_that_asked_for_a_kernel_opens_without_a_gpu(
    run_on_eight_devices, tmp_path
):
    run = tmp_path / "run"
    shutil.copytree(run_on_eight_devices, run)
    left = run / "config.json"
    written = json.loads(left.read_text())
    written["rollout"]["decode_attention"] = "triton"
    left.write_text(json.dumps(written))
    assert open_trained(run, None).config.rollout.decode_attention == "auto"
