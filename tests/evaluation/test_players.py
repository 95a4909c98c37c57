"""The players that read no text: best play reaches the ceiling, and chance."""

import functools
import json

import jax
import numpy as np
import pytest

from configs import sokoban
from envs.base import PlayBudget
from ragen_jax.evaluation import players, suites
from ragen_jax.host_games.base import MissingRequirement
from ragen_jax.rollout.keys import validation_keys
from ragen_jax.rollout.turns import EpisodeLimits
from ragen_jax.tasks.build import new_task
from ragen_jax.tasks.specs import EnvSpec
from tests import commands
from tests.host_games import solved_games

BUDGET = (3, 4, 10)


def make_task(name, kwargs=None, params=None, budget=BUDGET):
    spec = EnvSpec(name, kwargs=kwargs or {}, params=params or {})
    rules = EpisodeLimits(PlayBudget(*budget), max_reply_tokens=1)
    return new_task(spec, rules)


def play(task, player, num_prompts, seed=3, sample=0):
    """Levels, and which of them a player wins."""
    keys = validation_keys(seed, num_prompts, sample)
    levels = players.draw_levels(task, keys)
    return levels, players.make_play(task, player)(levels, keys)


@pytest.mark.parametrize(
    ("name", "kwargs", "params", "budget"),
    [
        ("sokoban", {}, {}, BUDGET),
        ("sokoban", {}, {}, (2, 2, 3)),
        ("frozen_lake", {}, {"success_rate": 1.0}, (2, 2, 4)),
        ("countdown", {"max_number": 9}, {}, (1, 1, 1)),
        ("cube2x2", {"max_distance": 2}, {}, (1, 2, 2)),
    ],
)
def test_the_solver_reaches_the_ceiling_where_nothing_is_left_to_chance(
    name, kwargs, params, budget
):
    task = make_task(name, kwargs, params, budget)
    levels, won = play(task, "solver", 48)
    assert won.mean() == pytest.approx(task.ceiling(levels))


def test_the_limits_are_kept():
    """Three actions do not solve every level: those of the test above can be missed."""
    won = play(make_task("sokoban", budget=(2, 2, 3)), "solver", 48)[1]
    assert 0 < won.mean() < 0.9
    one_turn = play(make_task("sokoban", budget=(1, 3, 10)), "solver", 48)[1]
    np.testing.assert_array_equal(won, one_turn)


def test_the_solver_imagines_slips():
    """On slippery ice it wins more than the plan of a lake without slips does."""
    small = {"size": 3}
    task = make_task("frozen_lake", small, {"success_rate": 0.5})
    levels, won = play(task, "solver", 128)
    blind = make_task("frozen_lake", small, {"success_rate": 1.0})
    plan = players.PLAYERS["solver"](blind)
    naive = players.play_arrays(task, plan)(levels, validation_keys(3, 128))
    assert naive.mean() + 0.03 < won.mean()
    # Four standard errors above the best possible would be chance in 1 of 30,000.
    assert won.mean() < task.ceiling(levels) + 4 * 0.5 / np.sqrt(128)


def test_random_play_is_uniform_and_repeats():
    task = make_task("bandit", budget=(1, 1, 1))
    (levels, won), again = (play(task, "random", 256) for _ in range(2))
    np.testing.assert_array_equal(won, again[1])
    assert (won != play(task, "random", 256, sample=1)[1]).any()
    few = play(task, "random", 16)[1]
    np.testing.assert_array_equal(few, won[:16])
    keys = jax.random.split(jax.random.key(0), 3000)
    sokoban_task = make_task("sokoban")
    actions = players.PLAYERS["random"](sokoban_task)(levels, keys)
    assert actions.shape == (3000, 4)
    shares = np.bincount(np.asarray(actions).ravel(), minlength=4) / 12_000
    # Five standard errors.
    np.testing.assert_allclose(shares, 0.25, atol=0.02)


def test_random_play_wins_what_its_actions_win():
    """One action on a lake of two tiles a side: a quarter of the time it is the goal.

    The goal is next to the start in two of three levels.
    """
    kwargs = {"size": 2, "frozen_probability": 1.0}
    task = make_task("frozen_lake", kwargs, {"success_rate": 1.0}, (1, 1, 1))
    _, won = play(task, "random", 2048)
    # Five standard errors of a share of 1/6.
    assert won.mean() == pytest.approx(1 / 6, abs=5 * 0.0083)


def lock_task(game, max_turns):
    host = sokoban.get_config().host.to_dict() | {"max_failed_fraction": 0.0}
    spec = EnvSpec(f"{solved_games.__name__}:{game}", host=host)
    rules = EpisodeLimits(PlayBudget(max_turns, 1, max_turns), 1)
    return new_task(spec, rules)


def test_games_in_python_are_played_by_their_solutions():
    for game in ("Lock", "Pictured"):
        assert play(lock_task(game, 2), "solver", 16)[1].all()
    # Of a single reply: only where one is enough.
    short = play(lock_task("Lock", 1), "solver", 16)[1]
    assert 0 < short.sum() < 16
    with pytest.raises(ValueError, match=r"Hopeless has no replies that win"):
        play(lock_task("Hopeless", 2), "solver", 4)


def test_games_in_python_have_no_random_player(monkeypatch, capsys):
    config = sokoban.get_config()
    config.evaluation.num_prompts = 8
    entries = {entry.name: entry for entry in suites.SUITES["all"]}
    two = (entries["MathQA"], entries["Bandit"])
    monkeypatch.setitem(suites.SUITES, "two", two)
    bind = functools.partial(players.player_evaluations, config)
    (evaluation,) = bind("random", "two")
    assert evaluation.name == "Bandit"
    assert "note: MathQA is left out" in capsys.readouterr().err
    assert len(bind("solver", "two")) == 2
    with pytest.raises(MissingRequirement, match="has no list of actions to draw from"):
        bind("random", "math")
    found = evaluation.play()
    assert found.metrics["success"] == found.wins.mean()
    assert found.metrics["num_prompts"] == 8
    assert found.metrics["regret"] == found.metrics["ceiling"] - found.wins.mean()
    assert evaluation.settings["max_turns"] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "add --config and leave out --run"),
        (["--config=configs/bandit.py", "--output=x.jsonl"], "--output has no effect"),
        (
            ["--config=configs/bandit.py", "--temperature=1"],
            "--config.evaluation.temperature has no effect with this --player",
        ),
        (
            ["--config=configs/bandit.py", "--config.model.path=x"],
            "--config.model.path has no effect with this --player",
        ),
        (
            ["--config=configs/bandit.py", "--api.base_url=http://x", "--api.model=x"],
            "plays without a model; leave out --api.base_url",
        ),
        (["--config=configs/bandit.py", "--suite=chess"], "--suite='chess' is unknown"),
    ],
)
def test_what_a_player_does_not_read_is_refused(words, said):
    assert said in commands.refusal("evaluate", "--player=solver", *words)


def test_the_command_records_what_made_the_scores(tmp_path):
    path = tmp_path / "scores.json"
    words = ("--config=configs/bandit.py", "--player=solver", "--num_prompts=4")
    command = commands.command("evaluate", *words, f"--json={path}")
    for _ in range(2):
        done = commands.call(command)
        assert done.returncode == 0, done.stderr
    assert "(measured before)" in done.stdout
    content = json.loads(path.read_text())
    assert content["about"]["player"] == "solver"
    (score,) = content["scores"]
    assert score["wins"] == "1 1 1 1"
    made = score["made"]
    assert made["command"].startswith("python -m launch.evaluate --config=configs/band")
    assert {"ragen_jax", "jax", "device"} <= made.keys()
