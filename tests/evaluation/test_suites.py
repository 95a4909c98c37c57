"""Suites: every entry can be built, fits, and asks what its note says."""

import dataclasses
import importlib
import re
import threading
import time

import jax
import numpy as np
import pytest

import envs
from configs import TASK_FILES, bandit, sokoban
from ragen_jax.evaluation import harness, suites
from ragen_jax.evaluation.load import open_trained
from ragen_jax.evaluation.results import EvalResult, Results
from ragen_jax.evaluation.statistics import summarize
from ragen_jax.host_games.echo import Echo
from ragen_jax.models.hf.weights import load_config
from ragen_jax.program.build import POCKET
from ragen_jax.rollout.keys import validation_keys
from ragen_jax.tasks.build import build_task, check_fit, play_rules
from ragen_jax.tasks.specs import EnvSpec, env_specs, make_env
from ragen_jax.text.tokenizer import load_tokenizer
from tests.rollout import players

TASKS = {
    game: importlib.import_module(f"configs.{file}")
    for game, file in TASK_FILES.items()
    if game != "echo"  # nothing to measure
}
ENTRIES = {entry.name: (name, entry) for name in TASKS for entry in suites.SUITES[name]}


# Rows of cells that no other test cuts for a real tokenizer. Those of 8x8 Sokoban are
# of its limit of 2**18 rows, and take long.
ROWS = ("Sokoban-NewVocabulary", "FrozenLake-5x5", "FrozenLake-6x6")


def task_of(label, preset, tokenizer):
    name, entry = ENTRIES[label]
    config = TASKS[name].get_config(preset)
    entries = harness.suite_configs(config, name, ())
    ((changed, found),) = [pair for pair in entries if pair[1].name == label]
    assert changed == suites.configure(config, entry)
    task = build_task(changed, found.spec, tokenizer)
    assert task.name == label
    return changed, task


@pytest.mark.parametrize("label", ENTRIES)
def test_every_entry_can_be_played_by_the_pocket_model(label):
    config, task = task_of(label, "pocket", load_tokenizer(POCKET))
    check_fit(config, task, load_config(POCKET))


@pytest.mark.parametrize("label", ROWS)
def test_rows_are_whole_under_a_real_tokenizer(label):
    _, task = task_of(label, "qwen2.5-0.5b", players.tokenizer("bpe"))
    # Qwen-2.5 reads 32,768 tokens.
    assert task.dialogue.max_window_tokens < 32_768


@pytest.mark.parametrize(("name", "has"), [("sokoban", True), ("bandit", False)])
def test_scores_of_levels_that_were_not_held_out_are_of_other_settings(name, has):
    """Files written before levels were held out by content lack the word."""
    config = TASKS[name].get_config()
    spec = EnvSpec(name)
    played = harness.describe(config, spec, make_env(spec)[0])
    assert ("levels" in played) == has


def test_the_entries_are_what_they_are_called():
    entries = {label: entry.spec for label, (_, entry) in ENTRIES.items()}
    boards = envs.make("sokoban", **entries["Sokoban-8x8-TwoBoxes"].kwargs)
    assert (boards.rows, boards.cols, boards.num_boxes) == (8, 8, 2)
    renamed = envs.make("sokoban", **entries["Sokoban-NewVocabulary"].kwargs)
    assert not set(renamed.symbols) & set(envs.make("sokoban").symbols)
    names = envs.make("bandit", **entries["Bandit-TestNames"].kwargs).action_vocabulary
    assert not set(names) & set(envs.make("bandit").action_vocabulary)
    assert envs.make("bandit", **entries["Bandit-Reversed"].kwargs).reverse
    rates = [entries[f"FrozenLake-{name}"].params for name in ("NoSlip", "HalfSlip")]
    assert rates == [{"success_rate": 1.0}, {"success_rate": 0.5}]
    for label, (_, entry) in ENTRIES.items():
        assert entry.note.endswith("."), label


def test_one_suite_has_every_game_s_entries_once():
    assert suites.SUITES.keys() == {*TASKS, "all"}
    names = [entry.name for entry in suites.SUITES["all"]]
    assert sorted(names) == sorted(ENTRIES)


@pytest.mark.parametrize("label", [entry.name for entry in suites.SUITES["all"]])
def test_every_game_fits_the_policy_of_another(label):
    """`--config=configs/sokoban.py --suite=all` builds all of its tasks."""
    pairs = harness.suite_configs(sokoban.get_config(), "all", ())
    ((config, entry),) = [pair for pair in pairs if pair[1].name == label]
    task = build_task(config, entry.spec, load_tokenizer(POCKET))
    check_fit(config, task, load_config(POCKET))


def test_a_suite_plays_its_games_with_a_policy_of_a_game_in_python():
    config = sokoban.get_config()
    with config.ignore_type():
        config.env.host = "echo"
    changed = suites.configure(config, ENTRIES["FrozenLake-5x5"][1])
    assert changed.env.host is None
    (spec,) = env_specs(changed)
    assert (spec.name, spec.host) == ("frozen_lake", None)


def test_a_game_in_python_is_played_with_the_policy_s_workers():
    config = sokoban.get_config()
    config.host.num_workers = 3
    ((changed, entry),) = harness.suite_configs(config, "webshop", ())
    assert changed.env.host == "webshop"
    assert changed.env.kwargs.page_size == 3
    assert entry.spec.host["num_workers"] == 3
    task = build_task(changed, entry.spec, load_tokenizer(POCKET))
    assert task.env.spec.kwargs == {"page_size": 3}
    assert play_rules(changed).budget.max_actions_per_turn == 1


@pytest.mark.parametrize("name", ["lean", "search", "webshop", "alfworld", "math"])
def test_a_game_in_python_is_played_as_its_configuration_says(name):
    config = TASKS[name].get_config("qwen2.5-0.5b")
    (entry,) = suites.SUITES[name]
    assert entry.spec.kwargs == config.env.kwargs.to_dict()
    flat = config.to_dict()
    for key, value in entry.changes.items():
        section, name = key.split(".")
        assert flat[section][name] == value, key
    small = TASKS[entry.spec.name].get_config("pocket")
    assert small.rollout.max_reply_tokens == entry.reply_tokens


@pytest.mark.parametrize("name", ["countdown", "cube2x2", "sudoku", "game2048"])
def test_replies_may_be_as_long_as_the_game_s_configuration_allows(name):
    config = TASKS[name].get_config("pocket")
    for entry in suites.SUITES[name]:
        changed = suites.configure(sokoban.get_config(), entry)
        assert changed.rollout.max_reply_tokens == config.rollout.max_reply_tokens


class NeedsPackage(Echo):
    """A game that lacks its package."""

    def __init__(self, split):
        raise ImportError("this game needs a shop: pip install shop")


def test_an_entry_whose_package_is_missing_is_left_out(monkeypatch, capsys):
    echo = ENTRIES["MathQA"][1]
    spec = dataclasses.replace(echo.spec, name=f"{__name__}:NeedsPackage", label="Shop")
    shop = dataclasses.replace(echo, spec=spec)
    monkeypatch.setitem(suites.SUITES, "two", (shop, ENTRIES["Bandit"][1]))
    monkeypatch.setitem(suites.SUITES, "one", (shop,))
    trained = open_trained(None, sokoban.get_config())
    (evaluation,) = harness.policy_evaluations(trained, "two")
    assert evaluation.name == "Bandit"
    said = capsys.readouterr().err
    assert re.search(r"note: Shop is left out: .*pip install shop", said)
    with pytest.raises(ValueError, match=r"suite 'one', Shop: .*pip install shop"):
        harness.policy_evaluations(trained, "one")


def test_a_budget_replaces_the_policy_s_unless_the_user_set_it():
    entry = ENTRIES["Sokoban-8x8-TwoBoxes"][1]
    config = sokoban.get_config()
    config.bonus.facts = 0.5
    changed = suites.configure(config, entry)
    assert play_rules(changed).budget.max_turns == 6
    assert play_rules(changed).budget.max_actions_per_episode == 24
    assert changed.bonus.facts is None
    assert play_rules(config).budget.max_turns == 3
    assert config.env.kwargs.to_dict() == {}
    changed = suites.configure(config, entry, ["rollout.max_turns"])
    assert play_rules(changed).budget.max_turns == 3
    assert play_rules(changed).budget.max_actions_per_episode == 24


def test_what_does_not_fit_the_model_is_named_before_anything_is_played():
    config = sokoban.get_config()
    config.rollout.max_reply_tokens = 250
    trained = open_trained(None, config)
    with pytest.raises(
        ValueError, match=r"suite 'sokoban', Sokoban-8x8-TwoBoxes: .*2048"
    ):
        harness.policy_evaluations(trained, "sokoban")
    with pytest.raises(ValueError, match="Choose one of sokoban, bandit, frozen_lake"):
        harness.policy_evaluations(trained, "chess")


def test_samples_play_the_same_levels_with_other_draws():
    first, second = (validation_keys(7, 5, sample) for sample in (0, 1))
    data = jax.random.key_data
    np.testing.assert_array_equal(data(first.level), data(second.level))
    drawn = [data(k) for keys in (first, second) for k in (keys.noise, keys.sample)]
    assert len(np.unique(np.concatenate(drawn), axis=0)) == 4 * 5
    # Whatever the number of prompts.
    more = validation_keys(7, 9, 1)
    for name in ("level", "noise", "sample"):
        own, larger = data(getattr(second, name)), data(getattr(more, name))
        np.testing.assert_array_equal(own, larger[:5])


def counting_evaluation(name, played):
    def play():
        played.append(name)
        metrics = summarize(np.array([[True], [False]]), 1.0, ())
        records = [{"row": 0, "success": True}]
        return EvalResult(metrics, np.array([1, 0]), lambda: records)

    return suites.EvalTask(
        EnvSpec(name, label=name),
        note="A note.",
        settings={"environment": name},
        play=play,
    )


def test_an_interrupted_suite_goes_on(tmp_path):
    about, path, played, said = {"evaluation": {}}, tmp_path / "s.json", [], []
    evaluations = [counting_evaluation(name, played) for name in ("A", "B", "C")]

    def run(evaluations, **settings):
        settings = {"keep_episodes": False} | settings
        return harness.run_evaluations(
            evaluations, Results(about, path), say=said.append, **settings
        )

    run(evaluations[:2])
    run(evaluations)
    assert played == ["A", "B", "C"]
    assert said[2].endswith("(measured before)")
    assert said[4].startswith("3/3 C: success 50.0% (95 % interval 9.5% to 90.5%)")
    records = run(evaluations, keep_episodes=True)
    assert played == ["A", "B", "C", "A", "B", "C"]
    assert [record["environment"] for record in records] == ["A", "B", "C"]


@pytest.mark.parametrize(
    ("wins", "temperature", "is_said"),
    [([4, 0], 0.0, True), ([4, 1], 0.0, False), ([4, 0], 0.7, False)],
)
def test_samples_that_are_one_are_said(wins, temperature, is_said, capsys):
    def play():
        success = np.arange(4) < np.array(wins)[:, None]
        metrics = summarize(success, 1.0, (4,))
        metrics |= {"num_samples": 4.0, "temperature": temperature}
        return EvalResult(metrics, np.array(wins), list)

    evaluation = dataclasses.replace(counting_evaluation("A", []), play=play)
    results = Results({"evaluation": {}}, None)
    harness.run_evaluations(
        [evaluation], results, say=lambda line: None, keep_episodes=False
    )
    assert ("pass@k is pass@1" in capsys.readouterr().err) is is_said


def test_two_evaluations_at_once_are_reported_in_order(tmp_path):
    """The second one runs while the first does; a failure stops what has not begun."""
    second_runs = threading.Event()

    def scored(name, wait):
        entry = counting_evaluation(name, played)
        return dataclasses.replace(entry, play=lambda: (wait(), entry.play())[1])

    def fail():
        raise ValueError("no such level")

    played, said = [], []
    evaluations = [
        scored("A", lambda: second_runs.wait(60) or fail()),
        scored("B", second_runs.set),
        scored("C", fail),
        *(scored(name, lambda: time.sleep(0.2)) for name in "DEFGH"),
    ]
    results = Results({"evaluation": {}}, tmp_path / "s.json")
    with pytest.raises(ValueError, match="no such level"):
        harness.run_evaluations(
            evaluations,
            results,
            say=said.append,
            keep_episodes=False,
            run_concurrently=2,
        )
    assert [line.split(":")[0] for line in said] == ["1/8 A", "2/8 B"]
    assert [score.name for score in results.scores] == ["A", "B"]
    assert played[:2] == ["B", "A"]
    assert "H" not in played


@pytest.mark.slow
def test_samples_of_an_entry_are_counted_by_level(model):
    config = bandit.get_config()
    config.model.path = str(model)
    asked = {"num_prompts": 4, "num_samples": 3, "pass_at": (1, 3)}
    changes = {f"evaluation.{name}": value for name, value in asked.items()}
    trained = open_trained(None, config, changes=changes)
    _, evaluation, _ = harness.policy_evaluations(trained, "bandit")
    assert evaluation.name == "Bandit-TestNames"
    metrics, wins, make_records = evaluation.play()
    episodes = make_records()
    assert len(episodes) == 4 * 3
    first = [episode["turns"][0]["observation"] for episode in episodes]
    assert first[0::3] == first[1::3] == first[2::3]
    success = np.reshape([episode["success"] for episode in episodes], (4, 3))
    np.testing.assert_array_equal(wins, success.sum(axis=1))
    assert metrics["success"] == pytest.approx(success.mean())
    assert metrics["pass@1"] == pytest.approx(success.mean())
    assert metrics["pass@3"] == pytest.approx(success.any(axis=1).mean())
    assert metrics["num_samples"] == 3
    # Bandit has too few levels to keep some from training.
    assert metrics["held_out"] == 0
