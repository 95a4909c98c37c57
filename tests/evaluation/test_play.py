"""Play in the terminal: typed replies are a rollout's, and the person sees its text."""

import itertools
import re

import jax
import pytest
from PIL import Image

from ragen_jax.evaluation.play import play
from ragen_jax.rollout.collect import rollout_keys
from ragen_jax.tasks import Task
from tests import commands
from tests.rollout import players

LINES = ["Up || Left", "Right " * 30, "Right", "Jump"]


def test_typed_replies_are_played():
    env, dialogue = players.game("sokoban")
    params, tokenizer = env.default_params, players.tokenizer()
    task = Task("Sokoban", env, params, players.RULES, tokenizer, dialogue)
    keys, lines, shown = rollout_keys(jax.random.key(2), 1, 1), list(LINES), []
    total = play(task, keys, read_line=lambda: lines.pop(0), say=shown.append)
    state, reward = env.reset_split(keys.level[0], params, keys.split), 0.0
    boards = [env.render(state, params)]
    for names in (["Up", "Left"], ["Right"]):
        for name in names:
            action = env.action_vocabulary.index(name)
            _, state, gain, *_ = env.step_env(keys.noise[0], state, action, params)
            reward += float(gain)
        boards.append(env.render(state, params))
    # "Jump" is no action: it costs the penalty and changes nothing.
    assert total == pytest.approx(reward + players.RULES.format_penalty)
    assert not lines
    text = "\n".join(shown)
    positions = [text.index(board) for board in boards]
    assert positions == sorted(positions)
    assert "are allowed; write a shorter one" in text
    assert [line.count("actions run") for line in shown].count(1) == 3
    assert "[0 actions run, reward 0, penalty -0.1]" in text
    assert shown[-2] == f"\n{boards[-1]}"
    assert shown[-1].startswith("not won, return ")


def test_the_solvers_episode_as_an_animation(tmp_path):
    path = tmp_path / "deep" / "episode.gif"
    words = ["--config=configs/sokoban.py", "--player=solver", f"--gif={path}"]
    done = commands.call(commands.command("play", *words))
    assert done.returncode == 0, done.stderr
    count = int(re.search(r"written: (\d+) actions", done.stdout).group(1))
    with Image.open(path) as picture:
        assert picture.n_frames == count + 1
        frames = []
        for i in range(picture.n_frames):
            picture.seek(i)
            frames.append(picture.convert("RGB").tobytes())
        assert picture.info["duration"] == 2000
    # Every action of the solver changes the board.
    assert all(a != b for a, b in itertools.pairwise(frames))


def test_an_animation_needs_a_board_and_an_episode(tmp_path):
    words = ["--config=configs/bandit.py", "--player=solver"]
    line = commands.command("play", *words, f"--gif={tmp_path / 'x.gif'}")
    assert "this game shows no board" in commands.call(line).stderr
    by_hand = commands.command("play", words[0], f"--gif={tmp_path / 'x.gif'}")
    assert "--gif shows --player=policy" in commands.call(by_hand).stderr
    assert not list(tmp_path.iterdir())
