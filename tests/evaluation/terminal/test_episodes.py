"""Play in the terminal: typed replies are a rollout's, and the person sees its text."""

import itertools
import re

import jax
import pytest
from PIL import Image

from ragen_jax.evaluation.terminal.episodes import play
from ragen_jax.rollout.keys import rollout_keys
from ragen_jax.tasks.task import Task
from tests import commands
from tests.rollout import players

LINES = ["Up || Left", "Right " * 30, "Right", "Jump"]


@pytest.mark.slow
def test_typed_replies_are_played():
    env, dialogue = players.game("sokoban")
    params, tokenizer = env.default_params, players.tokenizer()
    task = Task("Sokoban", env, params, players.LIMITS, tokenizer, dialogue)
    keys, lines, shown = rollout_keys(jax.random.key(2), 1, 1), list(LINES), []
    trajectory = play(task, keys, read_line=lambda: lines.pop(0), say=shown.append)
    state, reward = env.reset_split(keys.level[0], params, keys.split), 0.0
    boards = [env.render(state, params)]
    for names in (["Up", "Left"], ["Right"]):
        for name in names:
            action = env.action_vocabulary.index(name)
            _, state, gain, *_ = env.step_env(keys.noise[0], state, action, params)
            reward += float(gain)
        boards.append(env.render(state, params))
    # "Jump" is not an action: it costs the penalty and changes nothing.
    paid = trajectory.turns.reward + trajectory.turns.penalty
    assert float(paid.sum()) == pytest.approx(reward + players.LIMITS.format_penalty)
    assert not lines
    text = "\n".join(shown)
    positions = [text.index(board) for board in boards]
    assert positions == sorted(positions)
    assert "are allowed; write a shorter one" in text
    assert [line.count("actions run") for line in shown].count(1) == 3
    assert "[0 actions run, reward 0, penalty -0.1]" in text
    assert shown[-1] == f"\n{boards[-1]}"


@pytest.mark.slow
def test_the_solvers_episode_as_an_animation(tmp_path):
    path = tmp_path / "deep" / "episode.gif"
    words = ["--config=configs/sokoban.py", "--player=solver", f"--gif={path}"]
    done = commands.call(commands.command("play", *words))
    assert done.returncode == 0, done.stderr
    assert "turn 1 says: P" in done.stdout
    assert "<" not in done.stdout
    count = int(re.search(r"written: (\d+) boards", done.stdout).group(1))
    with Image.open(path) as picture:
        assert picture.n_frames == count
        frames = []
        for i in range(picture.n_frames):
            picture.seek(i)
            frames.append(picture.convert("RGB").tobytes())
        assert picture.info["duration"] == 2000
    # Every action of the solver changes the board.
    assert all(a != b for a, b in itertools.pairwise(frames))


def test_an_animation_needs_a_board(tmp_path):
    words = "--config=configs/bandit.py", f"--gif={tmp_path / 'x.gif'}"
    assert "this game shows no board" in commands.refusal("play", *words)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_solvers_episode_in_words():
    words = ["--config=configs/bandit.py", "--player=solver"]
    done = commands.call(commands.command("play", *words))
    assert done.returncode == 0, done.stderr
    assert "<" not in done.stdout
    (arm,) = re.findall(r"turn 1 says: \w+ -> (\w+)\nruns: (?=\1; reward)", done.stdout)
    assert f"You took {arm}.\n\nwon in 1 action, return" in done.stdout
    assert done.stdout.endswith("best play: won in 1 action\n")
    raw = commands.call(commands.command("play", *words, "--raw"))
    assert f"<answer>{arm}</answer><|im_end|>" in raw.stdout
