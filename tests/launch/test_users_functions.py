"""Functions and classes of the user's, named `package.module:Name`."""

import inspect
import json
import pathlib

import numpy as np
import pytest
from ml_collections import ConfigDict

from launch.function_checks import KINDS, find_kind, problems
from ragen_jax.registry.settings import add_options
from tests import commands
from tests.algo.calls import options_of
from tests.launch import users_functions

USERS = pathlib.Path(users_functions.__file__)
MINE = "tests.launch.users_functions"
ALL = {
    "algo__advantage": f"{MINE}:scaled_grpo",
    "algo__strength": "0.5",
    "algo__reward": f"{MINE}:shaped",
    "filter__rule": f"{MINE}:first_groups",
    "filter__share": "0.5",
    "filter__keep_fraction": "None",
    "bonus__custom": f"{MINE}:brevity",
    "logging__metrics": f"{MINE}:mean_actions_left",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory, model):
    """A run with a function of the user's at every place."""
    workdir = tmp_path_factory.mktemp("door") / "run"
    changes = ALL | {"train__num_iterations": 1, "evaluation__every": None}
    words = commands.train_command(model, workdir, **changes)
    done = commands.call(words)
    assert done.returncode == 0, done.stderr
    return workdir, words


def records(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_functions_take_part_and_are_recorded(trained):
    workdir, _ = trained
    config = json.loads((workdir / "config.json").read_text())
    assert config["algo"]["advantage"] == f"{MINE}:scaled_grpo"
    assert config["algo"]["strength"] == 0.5
    assert config["algo"]["shaping"] == 0.5  # the function's default
    assert config["filter"]["share"] == 0.5
    assert config["bonus"]["price"] == 0.01
    (last,) = records(workdir)
    assert 0 < last["train/Sokoban/mean_actions_left"] <= 10
    assert last["rollout/filter_kept_ratio"] == 0.5
    lengths = last["train/Sokoban/response_length"]
    np.testing.assert_allclose(last["train/Sokoban/bonus"], -0.01 * lengths, rtol=1e-4)


def test_a_run_with_them_resumes_and_refuses_other_options(trained):
    workdir, words = trained
    changed = commands.call([*words, "--config.algo.strength=1.0"])
    assert changed.returncode == 2
    assert "algo.strength: 0.5 -> 1.0" in changed.stderr
    resumed = commands.call([*words, "--config.train.num_iterations=2"])
    assert resumed.returncode == 0, resumed.stderr
    assert records(workdir)[-1]["iteration"] == 2


@pytest.mark.slow
def test_a_run_with_them_is_evaluated_and_exported(trained, tmp_path):
    workdir, _ = trained
    scored = commands.call(
        commands.command("evaluate", f"--run={workdir}", "--num_prompts=4")
    )
    assert scored.returncode == 0, scored.stderr
    assert "val-env/Sokoban/mean_actions_left" in scored.stdout
    words = [f"--run={workdir}", f"--output={tmp_path / 'model'}"]
    exported = commands.call(commands.command("export", *words))
    assert exported.returncode == 0, exported.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["algo.advantage=nowhere:f"], "there is no module nowhere in"),
        ([f"algo.advantage={MINE}:grppo"], "Did you mean 'grpo'?"),
        ([f"algo.advantage={MINE}:names_its_own"], "asks for prizes, which is not"),
        ([f"algo.advantage={MINE}:reads_entropies"], "asks for entropies, which is"),
        (
            [f"filter.rule={MINE}:first_groups", "filter.keep_fraction=None"],
            "reads filter.share, which has no default; add --config.filter.share=",
        ),
        (
            [f"algo.advantage={MINE}:scaled_grpo", "algo.strenght=2"],
            "no configuration key 'algo.strenght'. Did you mean 'algo.strength'?",
        ),
        (
            [f"algo.advantage={MINE}:scaled_grpo", "algo.strength=much"],
            "algo.strength = 'much'; it must be a finite number",
        ),
        (["algo.strength=2"], "no configuration key 'algo.strength'"),
        (
            [f"algo.advantage={MINE}:has_an_array"],
            "config.json cannot hold; use a number, a text",
        ),
        (
            [f"algo.advantage={MINE}:has_no_type"],
            "algo.cap, whose default is None; give the parameter a default of the type",
        ),
        (
            [f"algo.advantage={MINE}:scaled_grpo", "algo.lam=0.9"],
            "algo.lam has no effect here",
        ),
        ([f"env.name={MINE}:shaped"], "is not an environment"),
        (["env.name=nowhere:Game"], "env: there is no module nowhere"),
    ],
)
def test_what_cannot_be_used_is_refused(words, message, tmp_path):
    settings = [f"--config.{word}" for word in words]
    start = "--config=configs/sokoban.py", f"--workdir={tmp_path / 'run'}"
    assert message in commands.refusal("train", *start, *settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["env.host=coding", "env.kwargs.total_seconds=20"],
            "host.step_seconds = 10 ends a step before the time limit of coding, 20 s",
        ),
        (
            ["env.host=tests.host_games.broken_games:Unmakeable"],
            "raised KeyError: 'no such table' (",
        ),
    ],
)
def test_host_games_that_cannot_be_played_are_refused(words, message, tmp_path):
    settings = [f"--config.{word}" for word in words]
    line = commands.command("train", "--config=configs/world.py", *settings)
    done = commands.call([*line, f"--workdir={tmp_path / 'run'}"])
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("default", "value", "expected"),
    [
        (1.0, 2, 2.0),
        (1, 2, 2),
        (True, False, False),
        ("a", "b", "b"),
        (None, True, True),
        (inspect.Parameter.empty, True, True),
    ],
)
def test_an_option_takes_values_like_its_default(default, value, expected):
    held = {"advantage": "x:y", "own": type(expected)()}
    config = ConfigDict({"algo": held})

    def entry(trajectory, *, own=default):
        return own

    tables = {"algo.advantage": {"x:y": entry}}
    # The user's own configuration file may hold the key already.
    for given in (config, ConfigDict({"algo": {"advantage": "x:y"}})):
        add_options(given, tables, {"algo.own": value})
        assert given.algo.own == expected
        assert type(given.algo.own) is type(expected)


@pytest.mark.parametrize(
    ("kind", "name"), [(k, name) for k, kind in KINDS.items() for name in kind.table]
)
def test_our_own_functions_pass_the_checks(kind, name):
    entry = KINDS[kind].table[name]
    assert list(problems(KINDS[kind], entry, options_of(entry))) == []


@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        ("scaled_grpo", "advantage", {"strength": 2.0}),
        ("of_episodes", "advantage", {"strength": 2.0}),
        ("first_groups", "filter", {"share": 0.5}),
        ("brevity", "bonus", {"price": 0.1}),
        ("shaped", "reward", {"shaping": 1.0}),
        ("mean_actions_left", "metrics", {}),
    ],
)
def test_the_users_functions_pass_the_checks(name, kind, options):
    entry = getattr(users_functions, name)
    assert find_kind(entry) in (kind, None)
    assert list(problems(KINDS[kind], entry, options)) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("not_finite", "on episodes without rewards: advantages is not finite"),
        ("of_another_shape", "it must be float32[16, 24]"),
        ("of_another_type", "it must return ragen_jax.algo.segments.Estimate"),
        ("asks_for_more", f"no attribute 'winnings' ({USERS}, line "),
        ("calls_as_before", "grpo(rewards, mask, *, group_size)"),
    ],
)
def test_faults_are_found_by_the_command(name, message):
    done = commands.call(commands.command("check", f"{MINE}:{name}"))
    assert done.returncode == 1
    assert message in done.stdout
    assert "1 broken" in done.stdout


def test_the_command_says_what_it_checks():
    done = commands.call(commands.command("check", f"{MINE}:first_groups", "share=0.5"))
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("first_groups keeps the contract\n")
    lacking = commands.refusal("check", f"{MINE}:first_groups")
    assert "give share=VALUE" in lacking
    game = commands.call(commands.command("check", "bandit"))
    assert game.returncode == 0, game.stdout
    assert "ok      Stepping a finished state changes nothing" in game.stdout


def test_a_constructor_that_raises_is_one_sentence_in_the_check():
    line = commands.refusal("check", "tests.host_games.broken_games:Unmakeable")
    assert "broken_games:Unmakeable raised KeyError: 'no such table' (" in line


def test_limits_of_a_host_game_can_be_checked_with_longer_steps():
    words = ["check", "coding", "total_seconds=20"]
    line = commands.refusal(*words)
    assert "set host.step_seconds above 20" in line
    line = commands.refusal(*words, "host.seconds=40")
    assert "there is no host.seconds; use host. and " in line
    done = commands.call(commands.command(*words, "host.step_seconds=40"))
    assert "coding keeps the contract" in done.stdout
