"""Configuration: every rule names key and cure, and JSON loses nothing."""

import ast
import dataclasses
import pathlib
import re

import pytest
from ml_collections import ConfigDict

from configs import agent, base, pocket
from ragen_jax import config as config_lib
from ragen_jax.registry.functions import is_reference
from ragen_jax.registry.settings import Section, Setting, Settings, flatten
from ragen_jax.sft import rules as sft_rules
from tests import commands


def broken(**changes):
    config = base.get_config()
    config.update_from_flattened_dict(commands.dotted(changes))
    return config


SETTINGS = base.SETTINGS
VALUES = [key for key in SETTINGS if isinstance(SETTINGS[key], Setting)]
CONDITION = re.compile(r"([\w.]+) (is not|is|==|!=|>) (.+)")


@pytest.mark.parametrize("key", SETTINGS)
def test_every_declaration_is_whole(key):
    """It has a meaning, allows its default, and names keys and tables that exist."""
    entry = SETTINGS[key]
    assert entry.meaning[0] == entry.meaning[0].upper() or entry.meaning[0] == "`"
    assert "." not in key or isinstance(SETTINGS[key.rsplit(".", 1)[0]], Section)
    for condition in entry.needs:
        other, _, value = CONDITION.fullmatch(condition).groups()
        ast.literal_eval(value)
        assert other in VALUES
    if isinstance(entry, Setting):
        assert entry.meaning.endswith((".", ")."))
        assert entry.problem(key, entry.default) is None
        assert entry.default is not None or entry.none
        # References are resolved.
        assert not any(map(is_reference, entry.choices))
        mentioned = re.findall(r"`([a-z]+\.[a-z_]+)`", entry.meaning)
        assert [name for name in mentioned if name not in SETTINGS] == []


def outside(setting):
    """A value just outside of every bound, and one of another type."""
    wrong = {bool: "yes", str: 3, tuple: 3, int: 1.5, float: "much"}
    yield (
        "no such choice" if setting.one_of or setting.entry_of else wrong[setting.kind]
    )
    for bound in (setting.above, setting.below, setting.never):
        if bound is not None:
            yield bound
    if setting.least is not None:
        yield setting.least - 1
    if setting.most is not None:
        yield setting.most + 1
    if not setting.none:
        yield None


@pytest.mark.parametrize("key", VALUES)
def test_every_bound_is_enforced(key):
    for value in outside(SETTINGS[key]):
        config = base.get_config()
        section, _, name = key.rpartition(".")
        place = config[section] if section else config
        with place.ignore_type():
            place[name] = value
        with pytest.raises(
            ValueError, match=rf"^{re.escape(key)} (= |may not be None)"
        ):
            config_lib.validate(config)


CONDITIONS = [(key, need) for key in SETTINGS for need in SETTINGS[key].needs]


@pytest.mark.parametrize(("key", "condition"), CONDITIONS)
def test_every_condition_decides(key, condition):
    other, operator, text = CONDITION.fullmatch(condition).groups()
    value = ast.literal_eval(text)
    met, broken = {
        "is": (value, not value if value is not None else "x"),
        "is not": ("x", value),
        "==": (value, "another"),
        "!=": ("another", value),
        ">": (2, 1),
    }[operator]
    only = Settings({key: dataclasses.replace(SETTINGS[key], needs=(condition,))})
    assert only.unmet(key, {other: met}) is None
    assert only.unmet(key, {other: broken}).startswith(
        f"it is read only if {condition}"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rollout__top_p": 0.9}, "importance_cap"),
        ({"learner__minibatch_rows": 30}, "not a multiple"),
        ({"mesh__data": 1000}, "1000 devices"),
        ({"mesh__data": 3}, "cannot be split"),
        ({"bonus__length": 0.1}, "bonus.min_tokens = None"),
        ({"bonus__length": 0.1, "bonus__min_tokens": 9, "bonus__max_tokens": 8}, "= 8"),
        (
            {"bonus__length": 0.1, "bonus__min_tokens": 9, "bonus__max_tokens": 25},
            "max <= rollout.max_reply_tokens = 24",
        ),
        ({"bonus__max_tokens": 8}, "read by bonus.length alone"),
        ({"bonus__facts": 0.1, "prompt__thinking": False}, "asks for none"),
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


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("agent:module:function", True),
        ("verifiers:taskset", True),
        ("verifiers", False),
        ("textarena:Nim-v0", False),
        ("echo", False),
    ],
)
def test_games_that_call_the_model_have_keys_of_agents(host, expected):
    assert config_lib.is_agent(host) == expected
    config = agent.get_config()
    config.env.host = host
    keys = ["host.episode_tokens", "host.max_observation_tokens"]
    with pytest.raises(ValueError, match=f"{keys[expected]} has no effect"):
        config_lib.validate(config, keys)


def test_changed_keys_spare_what_a_resumed_run_may_change():
    old, new = base.get_config(), base.get_config()
    new.train.num_iterations += 1
    new.evaluation.every = None
    new.logging.sinks = ()
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
    free = sft_rules.declared(new).mutable
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
            "read only if env.host is None",
        ),
    ],
)
def test_parts_are_refused_where_they_do_nothing(changes, reason):
    words = rf"rollout\.part_rows.*{reason}"
    with pytest.raises(ValueError, match=words):
        config_lib.validate(broken(**changes), ["rollout.part_rows"])
    config_lib.validate(broken(**changes))
