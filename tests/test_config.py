"""Configuration: every rule names key and cure, and JSON loses nothing."""

import pathlib
import re

import pytest
from ml_collections import ConfigDict

from configs import bandit, base, frozen_lake, mix, pocket, sizes, sokoban
from ragen_jax import config as config_lib
from ragen_jax.registry.settings import flatten
from ragen_jax.sft import train as sft_train


def broken(**changes):
    config = base.get_config()
    config.update_from_flattened_dict(
        {key.replace("__", "."): value for key, value in changes.items()}
    )
    return config


@pytest.mark.parametrize("task", [sokoban, frozen_lake, bandit, mix])
@pytest.mark.parametrize("size", sorted(sizes.SIZES))
def test_every_preset_is_valid(task, size):
    config_lib.validate(task.get_config(size))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rollout__num_groups": 0}, "rollout.num_groups = 0; it must be at least 1"),
        ({"rollout__max_actions_per_turn": 0}, "rollout.max_actions_per_turn = 0"),
        ({"rollout__num_groups": None}, "rollout.num_groups may not be None"),
        ({"rollout__temperature": 0.0}, "above 0"),
        ({"rollout__top_p": 1.5}, "below 1"),
        ({"rollout__top_p": 1.0}, "all of the probability: None"),
        ({"rollout__top_p": 0.9}, "importance_cap"),
        ({"rollout__group_size": 1}, "group size of at least 2"),
        ({"algo__advantage": "gea"}, "choose one of"),
        ({"filter__keep_fraction": 0.0}, "filter.keep_fraction = 0.0"),
        ({"learner__minibatch_rows": 30}, "not a multiple"),
        ({"mesh__data": 1000}, "1000 devices"),
        ({"mesh__data": 3}, "cannot be split"),
        ({"optimizer__learning_rate": float("nan")}, "finite"),
        ({"seed": -1}, "seed = -1"),
        (
            {"rollout__group_size": 1, "algo__advantage": "rloo"},
            "compares none: bi_level_gae",
        ),
        ({"filter__rule": "top_p"}, "needs filter.top_p, which is None"),
        (
            {"filter__rule": "top_p", "filter__top_p": 0.9},
            "filter.keep_fraction = 0.25 is no option of filter.rule = 'top_p'",
        ),
        ({"filter__top_p": 1.5}, "filter.top_p = 1.5"),
        ({"filter__loss_scale": "rho"}, "reads filter.top_p"),
        ({"kl__target": 0.1}, "has no reference"),
        ({"kl__placement": "both"}, "choose one of loss, reward"),
        (
            {"algo__reward_placement": "turn", "algo__normalization": "mean"},
            "compares whole episodes",
        ),
        ({"algo__grouping": "environment"}, "a run plays one"),
        ({"loss__dual_clip": 1.0}, "above 1"),
        ({"schedule__shape": "cosine"}, "schedule.decay_updates = None"),
        ({"schedule__decay_updates": 10}, "set that to None"),
        ({"bonus__format": 0.0}, "bonus.format = 0.0; it must be above or below 0"),
        ({"bonus__length": 0.1}, "bonus.min_tokens = None"),
        ({"bonus__length": 0.1, "bonus__min_tokens": 9, "bonus__max_tokens": 8}, "= 8"),
        (
            {"bonus__length": 0.1, "bonus__min_tokens": 9, "bonus__max_tokens": 25},
            "max <= rollout.max_reply_tokens = 24",
        ),
        ({"bonus__max_tokens": 8}, "read by bonus.length alone"),
        ({"bonus__facts": 0.1, "prompt__thinking": False}, "asks for none"),
        ({"evaluation__num_samples": 0}, "evaluation.num_samples = 0"),
        ({"evaluation__pass_at": (1, 2)}, "evaluation.num_samples = 1"),
        ({"evaluation__pass_at": (0,)}, "evaluation.pass_at = (0,)"),
    ],
)
def test_a_broken_rule_names_key_and_cure(changes, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        config_lib.validate(broken(**changes))


def test_a_key_without_effect_is_refused():
    config = broken(evaluation__every=None)
    config_lib.validate(config)
    with pytest.raises(ValueError, match="no effect"):
        config_lib.validate(config, ["evaluation.num_prompts"])
    config_lib.validate(config, ["evaluation.every"])
    with pytest.raises(ValueError, match="length hint"):
        config_lib.validate(base.get_config(), ["prompt.length_hint_words"])


def test_changed_keys_spare_what_a_resumed_run_may_change():
    old, new = base.get_config(), base.get_config()
    new.train.num_iterations += 1
    new.evaluation.every = None
    new.logging.tensorboard = False
    new.checkpoint.keep = 7
    new.mesh.fsdp = 4
    assert config_lib.changed_keys(old, new) == {}
    new.optimizer.learning_rate = 0.5
    new.seed = 3
    assert config_lib.changed_keys(old, new) == {
        "optimizer.learning_rate": (2e-4, 0.5),
        "seed": (0, 3),
    }


def test_runs_of_before_a_key_was_there_resume():
    old, new = base.get_config(), base.get_config()
    with old.unlocked():
        del old.env["host"], old["host"], old.rollout["max_failed_fraction"]
    assert config_lib.changed_keys(old, new) == {}
    with new.ignore_type():
        new.env.host = "echo"
    changes = config_lib.changed_keys(old, new)
    assert changes["env.host"] == (None, "echo")
    # Fine-tuning of before context modes.
    old, new = pocket.get_config(), pocket.get_config()
    for game in old.games.values():
        with game.unlocked():
            del game["context"], game["context_turns"]
    free = sft_train.MUTABLE_ON_RESUME
    assert config_lib.changed_keys(old, new, free) == {}
    new.games.sokoban.context = "single_turn"
    changes = config_lib.changed_keys(old, new, free)
    assert changes == {"games.sokoban.context": ("full", "single_turn")}


def test_a_run_of_a_game_in_python_may_change_how_workers_are_kept():
    old, new = base.get_config(), base.get_config()
    for config in (old, new):
        with config.ignore_type():
            config.env.host = "echo"
    with new.ignore_type():
        new.host.num_workers, new.host.max_worker_bytes = 7, 2**30
    new.host.step_seconds, new.rollout.max_failed_fraction = 1.0, 0.5
    assert config_lib.changed_keys(old, new) == {}
    new.host.max_observation_tokens = 7
    assert [*config_lib.changed_keys(old, new)] == ["host.max_observation_tokens"]


def test_every_key_is_read_somewhere():
    """A key that no code mentions, alone or as part of a section, is dead."""
    root = pathlib.Path(__file__).parents[1]
    code = "\n".join(
        path.read_text()
        for folder in ("ragen_jax", "launch")
        for path in (root / folder).rglob("*.py")
        if path.name != "config.py"
    )
    dead = [
        key
        for key in flatten(base.get_config())
        if not re.search(rf"\b{key.rsplit('.', 1)[-1]}\b", code)
    ]
    assert dead == []


def test_unknown_preset_lists_the_choices():
    with pytest.raises(ValueError, match="pocket, study, qwen2"):
        sokoban.get_config("gpt-5")


def test_another_command_s_configuration_is_named_as_such():
    with pytest.raises(ValueError, match="not a training configuration"):
        config_lib.validate(pocket.get_config())


def test_a_run_of_before_these_keys_resumes():
    """The keys round differently, like another mesh, and change nothing else."""
    old = base.get_config().to_dict()
    for key in ("decode_attention", "read_chunk_tokens", "part_rows"):
        del old["rollout"][key]
    old["model"]["attention"] = "blocks"
    assert config_lib.changed_keys(ConfigDict(old), base.get_config()) == {}
    old["rollout"]["max_turns"] += 1
    changed = config_lib.changed_keys(ConfigDict(old), base.get_config())
    assert changed == {"rollout.max_turns": (4, 3)}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mesh__fsdp": 2, "rollout__part_rows": 4}, r"devices of mesh\.\*"),
        (
            {
                "env__host": "echo",
                "rollout__max_actions_per_turn": 1,
                "rollout__part_rows": 4,
            },
            "games in Python are played in two halves",
        ),
    ],
)
def test_parts_are_refused_where_they_do_nothing(changes, reason):
    words = rf"rollout\.part_rows.*{reason}"
    with pytest.raises(ValueError, match=words):
        config_lib.validate(broken(**changes), ["rollout.part_rows"])
    config_lib.validate(broken(**changes))
