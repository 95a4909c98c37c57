"""Play by hand: keys and names run actions, anything else costs nothing."""

import io
import sys
from unittest import mock

import jax
import numpy as np
import pytest
from rich.console import Console
from rich.text import Text

import envs
from envs.base import PlayBudget
from ragen_jax.evaluation.terminal import by_hand, scenes
from ragen_jax.rollout.keys import fold_turn, rollout_keys
from ragen_jax.rollout.turns import EpisodeLimits
from ragen_jax.tasks.task import Task
from tests import commands

KEYS = rollout_keys(jax.random.key(2), 1, 1)
BUDGET = PlayBudget(max_turns=3, max_actions_per_turn=3, max_actions_per_episode=5)


def episode_of(name, budget=BUDGET, **kwargs):
    env = envs.make(name, **kwargs)
    task = Task(name, env, env.default_params, EpisodeLimits(budget, 20))
    return by_hand.HandEpisode(task, KEYS)


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        (("Up", "Down", "Left", "Right"), ["↑w1", "↓s2", "←a3", "→d4"]),
        (("Left", "Right"), ["←a1", "→d2"]),
        (("Trapeze", "Bench"), ["t1", "b2"]),
        (("Quit", "Queue", "Que"), ["u1", "e2", "a3"]),
        (("1", "q", "Q2"), ["1", "q", "a3"]),
        (("Wait", "Up"), ["w1", "↑2"]),
        (
            [f"Zz{i}" for i in range(40)][34:],
            [f"{c}{i}" for i, c in enumerate("zabcde", 1)],
        ),
    ],
)
def test_every_action_has_keys_of_its_own(names, keys):
    assert by_hand.bind_keys(names) == keys


def test_of_very_many_actions_the_last_have_no_key():
    bound = by_hand.bind_keys([f"Zz{i}" for i in range(40)])
    assert all(bound[:25])
    assert not any(bound[25:])
    assert len(set("".join(bound))) == len("".join(bound)) == 25 + 9


def test_the_actions_of_a_policy_that_gives_one_at_a_time():
    """The states, rewards and noise are those of replies of one action each."""
    episode = episode_of("frozen_lake")
    env, params, state = episode.task.env, episode.task.params, episode.level
    assert episode.budget == PlayBudget(5, 1, 5)
    total = 0.0
    for turn, word in enumerate(["↑", "d", "LEFT", "2", "w"]):
        if episode.is_over:
            break
        action = episode.find(word)
        key = jax.random.fold_in(fold_turn(KEYS.noise, turn)[0], 0)
        _, state, reward, *_ = env.step_env(key, state, action, params)
        total += float(reward)
        note = episode.act(action)
        assert note.startswith(f"{env.action_vocabulary[action]}: reward {reward:g}")
        jax.tree.map(np.testing.assert_array_equal, episode.state, state)
    assert episode.num_actions > 1
    assert len(episode.boards) == episode.num_actions + 1
    assert episode.total == pytest.approx(total)
    done = env.is_terminated(state, params) or episode.num_actions == 5
    assert episode.is_over == bool(done)


def test_the_budget_is_what_replies_could_spend():
    assert episode_of("sokoban", PlayBudget(1, 2, 9)).budget == PlayBudget(2, 1, 2)


def test_unknown_words_cost_nothing_and_get_a_hint():
    episode = episode_of("sokoban")
    for word in ("Jump", "rihgt", "\x1b", "5", ""):
        assert episode.find(word) is None
    assert (
        episode.hint("rihgt")
        == "'rihgt' is not an action in this game. Did you mean 'right'?"
    )
    assert episode.hint("5") == (
        "'5' is not an action in this game. Choose one of Up, Down, Left, Right."
    )
    assert episode.hint("\x1b").startswith("This key is")
    assert episode.hint("\x1b" * 2).startswith("This line is")
    assert len(episode.hint("a" * 100_000)) < 120
    assert episode.num_actions == 0


def test_bytes_that_are_no_text_cost_nothing():
    episode = episode_of("countdown")
    assert "\udcff\udcfe" not in episode.names
    assert episode.find("\udcff\udcfe") is None


def lines_of(episode, *lines) -> str:
    shown = Console(file=io.StringIO(), width=80, markup=False)
    with mock.patch.object(sys, "stdin", io.StringIO("\n".join(lines))):
        by_hand.play_with_lines(episode, shown)
    return shown.file.getvalue()


def test_lines_name_actions():
    shown = lines_of(episode_of("sokoban"), "up", "Jmup", "3", "Q", "Down")
    assert shown.count("actions left") == 3  # a hint brings no board
    assert "'Jmup' is not an action in this game." in shown
    assert "actions left: 3   return: -0.2\n" in shown
    assert "\x1b" not in shown


def test_lines_stop_where_the_game_is_over():
    episode = episode_of("bandit")
    first, other = episode.names
    shown = lines_of(episode, other, first)
    assert episode.num_actions == 1
    assert episode.is_over
    assert f"You took {other}." in shown
    assert episode.boards == []


def test_a_board_is_coloured_and_a_text_is_as_the_game_says_it():
    episode = episode_of("sokoban", observation="grid_coord")
    env, params = episode.task.env, episode.task.params
    text = scenes.draw_state(episode.task, episode.state, 80)
    # On 80 columns a cell has two; the symbols are there without colours.
    plain = env.render(episode.state, params).rstrip("\n")
    before, board = plain.split("Map:\n")
    wide = "\n".join("".join(f"{c} " for c in row) for row in board.split("\n"))
    assert text.plain == f"{before}Map:\n{wide}"
    narrow = scenes.draw_state(episode.task, episode.state, 11)
    assert narrow.plain == plain
    player = text.plain.index("P ")
    (style,) = [s.style for s in text.spans if s.start <= player < s.end]
    assert style == "bold #2563c9 on #ece7db"
    shown = Console(file=io.StringIO(), force_terminal=True, no_color=True)
    shown.print(Text("P", style))
    assert "38;" not in shown.file.getvalue()


def test_the_end_in_words():
    assert scenes.describe_end(True, 1, 10.9) == "won in 1 action, return 10.9"
    assert scenes.describe_end(False, 2, -0.2) == "not won after 2 actions, return -0.2"
    left = scenes.describe_end(False, 0, 0.0, is_over=False)
    assert left == "you quit after 0 actions, return 0"


def test_best_play_in_words():
    episode = episode_of("sokoban")
    env, level = episode.task.env, jax.tree.map(lambda x: x[None], episode.level)
    fewest = int(env.fewest_actions(level, episode.task.params)[0])
    assert fewest > 1

    def best(num_actions):
        budget = PlayBudget(num_actions, 1, num_actions)
        return scenes.describe_best(episode.task, episode.level, budget)

    assert best(fewest) == f"best play: won in {fewest} actions"
    assert best(fewest - 1) == (
        f"the budget is too small: the shortest way takes {fewest} actions"
    )
    with mock.patch.object(env, "solve", side_effect=ValueError("too large")):
        assert best(fewest) == "best play is not known: too large"


def test_the_command_reads_lines_and_writes_the_boards(tmp_path):
    path = tmp_path / "hand.gif"
    words = ["--config=configs/mix.py", "--env=FrozenLake", f"--gif={path}"]
    done = commands.call(commands.command("play", *words), typed="Fly\nup\n")
    assert done.returncode == 0, done.stderr
    assert "'Fly' is not an action in this game." in done.stdout
    assert "you quit after 1 action, return 0\nbest play: won " in done.stdout
    assert f"{path} written: 2 boards" in done.stdout
    assert path.stat().st_size
