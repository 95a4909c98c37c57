"""Our interpreter against TextWorld's, with ALFRED's domain and with invented houses.

TextWorld with its planner (`pip install 'textworld[pddl]' alfworld`) has parts under
the GPL and compiles them, so that it has a Python of its own: RAGEN_JAX_TEXTWORLD names
it, unless the one that runs the tests has them.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from ragen_jax.host_games.alfworld.game import NOTHING, Alfworld
from ragen_jax.host_games.alfworld.houses import TASKS, invent
from ragen_jax.host_games.alfworld.story import Story, plain
from ragen_jax.host_games.base import SPLITS
from tests.host_games.alfworld.rooms import write_room

pytestmark = pytest.mark.live

PEER = pathlib.Path(__file__).with_name("peer.py")
NUM_ROOMS, NUM_HOUSES, NUM_REPLIES = 8, 6, 40


@pytest.fixture(scope="module")
def transcripts():
    python = os.environ.get("RAGEN_JAX_TEXTWORLD")
    if python is None:
        # Its planner takes ten minutes to build, and parts of it are GPL.
        for package in ("textworld", "fast_downward", "alfworld"):
            pytest.importorskip(package)
        python = sys.executable
    alfred = {"pddl_domain": None, "grammar": None}
    jobs = [
        [alfred | {"pddl_problem": write_room(seed)}, True, seed, NUM_REPLIES]
        for seed in range(NUM_ROOMS)
    ]
    jobs += [
        [invent(seed, TASKS, SPLITS[seed % 3 == 0]), False, seed, NUM_REPLIES]
        for seed in range(NUM_HOUSES)
    ]
    done = subprocess.run(
        [python, str(PEER)],
        input=json.dumps(jobs) + "\n",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_transcripts_are_equal(transcripts):
    played = [(content, shown) for content, shown in transcripts if shown is not None]
    assert len(played) >= NUM_HOUSES + NUM_ROOMS // 2
    wins = nothings = steps = 0
    for content, shown in played:
        story = Story(content)
        state, said = story.world.start, story.intro()
        for command, feedback, possible, is_won in shown:
            if command:
                move = story.commands(state).get(plain(command))
                if move is None:
                    said = NOTHING
                else:
                    state = story.world.apply(state, move)
                    said = story.answer(state, move)
            assert said == feedback
            assert list(story.commands(state)) == sorted(set(map(plain, possible)))
            assert story.world.is_won(state) == is_won
            steps += 1
            nothings += said == NOTHING
            wins += is_won
    assert steps > 150
    assert nothings > 10
    assert wins > 3


def test_walkthroughs_of_files_win(transcripts, tmp_path):
    """What wins there is the walkthrough of a file, in both ways to write names."""
    won = [content for content, shown in transcripts if shown and shown[-1][-1]]
    plans = [
        [x[0] for x in shown[1:]] for _, shown in transcripts if shown and shown[-1][-1]
    ]
    for number, (content, plan) in enumerate(zip(won, plans, strict=True)):
        folder = tmp_path / "train" / f"{number}"
        folder.mkdir(parents=True)
        text = json.dumps(content | {"walkthrough": plan, "solvable": True})
        (folder / "game.tw-pddl").write_text(text)
    game = Alfworld(data=str(tmp_path))
    for task in range(game.num_tasks):
        game.reset(0, task=task)
        *_, last = [game.step(reply) for reply in game.solution()]
        assert last.info["success"]
        assert last.reward == 10


def test_alfreds_texts_are_those_of_the_wheel(transcripts):
    """What the rooms are played with is ALFRED's, with its comma in a type."""
    content = transcripts[0][0]
    assert "(?l - location, ?r - receptacle)" in content["pddl_domain"]
    assert "You are in the middle of a room." in content["grammar"]
