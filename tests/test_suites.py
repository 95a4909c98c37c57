"""Suites: every entry can be built, fits, and asks what its note says."""

import json

import jax
import numpy as np
import pytest

import envs
from configs import bandit, frozen_lake, sokoban
from ragen_jax import contests, rngs, suites
from ragen_jax.config import play_budget
from ragen_jax.games import build_game, check_fit
from ragen_jax.models.hf_weights import load_config
from ragen_jax.program import POCKET
from ragen_jax.rollout.device import validation_keys
from ragen_jax.scorecard import Scorecard
from ragen_jax.success import summarize
from ragen_jax.text.tokenizer import load_tokenizer
from ragen_jax.trained import open_trained
from tests import commands
from tests.rollout import players

TASKS = {"sokoban": sokoban, "bandit": bandit, "frozen_lake": frozen_lake}
ENTRIES = {
    entry.label: (name, entry)
    for name, suite in suites.SUITES.items()
    for entry in suite
}


# Rows of cells that no other test cuts for a real tokenizer. Those of 8x8 Sokoban are
# of its limit of 2**18 rows, and take long.
ROWS = ("Sokoban-NewVocabulary", "FrozenLake-5x5", "FrozenLake-6x6")


def game_of(label, preset, tokenizer):
    """A suite's game as the command builds it, and its configuration."""
    name, entry = ENTRIES[label]
    config = TASKS[name].get_config(preset)
    found = contests.suite_configs(config, name, ())
    ((own, place, _),) = [one for one in found if one[1].label == label]
    assert own == suites.configure(config, entry)
    game = build_game(own, place, tokenizer)
    assert game.name == label
    return own, game


@pytest.mark.parametrize("label", ENTRIES)
def test_every_entry_can_be_played_by_the_pocket_model(label):
    own, game = game_of(label, "pocket", load_tokenizer(POCKET))
    check_fit(own, game, load_config(POCKET))


@pytest.mark.parametrize("label", ROWS)
def test_rows_are_whole_under_a_real_tokenizer(label):
    _, game = game_of(label, "qwen2.5-0.5b", players.tokenizer("bpe"))
    # Qwen-2.5 reads 32,768 tokens.
    assert game.dialogue.max_window_tokens < 32_768


def test_the_entries_are_what_they_are_called():
    entries = {label: entry for label, (_, entry) in ENTRIES.items()}
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


def test_a_budget_replaces_the_policy_s_unless_the_user_set_it():
    entry = ENTRIES["Sokoban-8x8-TwoBoxes"][1]
    config = sokoban.get_config()
    config.bonus.facts = 0.5
    changed = suites.configure(config, entry)
    assert play_budget(changed).max_turns == 6
    assert play_budget(changed).max_actions_per_episode == 24
    assert changed.bonus.facts is None
    assert play_budget(config).max_turns == 3
    assert config.env.kwargs.to_dict() == {}
    changed = suites.configure(config, entry, ["rollout.max_turns"])
    assert play_budget(changed).max_turns == 3
    assert play_budget(changed).max_actions_per_episode == 24


def test_what_does_not_fit_the_model_is_named_before_anything_is_played():
    config = sokoban.get_config()
    config.rollout.max_reply_tokens = 250
    trained = open_trained(None, config)
    with pytest.raises(
        ValueError, match=r"suite 'sokoban', Sokoban-8x8-TwoBoxes: .*2048"
    ):
        contests.policy_contests(trained, "sokoban")
    with pytest.raises(ValueError, match="choose one of sokoban, bandit, frozen_lake"):
        contests.policy_contests(trained, "chess")


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


def test_validation_levels_are_never_training_s():
    """Another stream of the root key, so even with the same seed."""
    root = rngs.root_key(123)
    levels = jax.random.key_data(validation_keys(123, 256).level)
    for step in range(3):
        key = rngs.stream(rngs.step_key(root, step), "level")
        trained = jax.random.key_data(rngs.rows(key, 64))
        both = np.concatenate([levels, trained])
        assert len(np.unique(both, axis=0)) == len(both)


def counting_contest(name, played):
    """A contest that notes that it is played."""

    def play():
        played.append(name)
        metrics = summarize(np.array([[True], [False]]), 1.0, ())
        return metrics, [{"row": 0, "success": True}]

    return contests.Contest(name, {"environment": name}, "A note.", play)


def test_an_interrupted_suite_goes_on(tmp_path):
    about, path, played, said = {"evaluation": {}}, tmp_path / "s.json", [], []
    games = [counting_contest(name, played) for name in ("A", "B", "C")]

    def hold(games, **settings):
        card = Scorecard(about, path)
        settings = {"keep_episodes": False} | settings
        return contests.hold(games, card, say=said.append, **settings)

    hold(games[:2])
    hold(games)
    assert played == ["A", "B", "C"]
    assert said[2].endswith("(measured before)")
    assert said[4].startswith("3/3 C: success 50.0% (95 % interval 9.5% to 90.5%)")
    records = hold(games, keep_episodes=True)
    assert played == ["A", "B", "C", "A", "B", "C"]
    assert [record["environment"] for record in records] == ["A", "B", "C"]


def test_the_command_writes_a_table_and_its_file(tmp_path):
    table, scores = tmp_path / "t/suite.md", tmp_path / "s/suite.json"
    output = tmp_path / "episodes.jsonl"
    model = commands.tiny_model(tmp_path / "tiny")
    words = commands.command(
        "evaluate",
        "--config=configs/bandit.py",
        f"--config.model.path={model}",
        "--suite=bandit",
        "--num_prompts=4",
        "--num_samples=3",
        "--pass_at=1,3",
        f"--table={table}",
        f"--json={scores}",
        f"--output={output}",
    )
    done = commands.run(words)
    assert done.returncode == 0, done.stderr
    assert "3/3 Bandit-Reversed: success" in done.stdout
    text = table.read_text()
    assert text in done.stdout
    rows = [line for line in text.splitlines() if line.startswith("| Bandit")]
    assert len(rows) == 3
    assert "| pass@1 | pass@3 |" in text
    assert "Chance is 50 %" in rows[0]
    episodes = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(episodes) == 3 * 4 * 3
    first = [e["turns"][0]["observation"] for e in episodes[:12]]
    assert first[0::3] == first[1::3] == first[2::3]
    held = json.loads(scores.read_text())["scores"]
    names = [entry.label for entry in suites.SUITES["bandit"]]
    assert [row["name"] for row in held] == names
    success = np.mean([e["success"] for e in episodes[:12]])
    assert held[0]["metrics"]["success"] == pytest.approx(success)
    shares = np.reshape([e["success"] for e in episodes[:12]], (4, 3)).any(axis=1)
    assert held[0]["metrics"]["pass@3"] == pytest.approx(shares.mean())
