"""Our client at our server: games in worker processes, played from worker processes."""

import base64

import numpy as np
import pytest

from configs import frozen_lake, world
from ragen_jax.host_games.adapters.openenv import OpenEnvGame
from ragen_jax.host_games.adapters.openenv_actions import find_images
from ragen_jax.host_games.adapters.openenv_connection import OpenEnvError
from ragen_jax.host_games.common.images import png_base64, read_png_base64
from ragen_jax.host_games.echo import Echo
from ragen_jax.host_games.workers.pool import GameSpec, Pool
from ragen_jax.program.build import build_program, open_program
from ragen_jax.serve.build import build_game
from tests.serve.serving import host_game, serving
from tests.serve.test_arrays import make

NUM_ROWS = 6
GAME = "ragen_jax.host_games.adapters.openenv:OpenEnvGame"


@pytest.fixture(scope="module")
def server():
    with serving(host_game(), max_sessions=NUM_ROWS) as running:
        yield running


def test_a_served_game_is_the_game_itself(server):
    """The same problems, by the seeds that the client sends, and the same rewards."""
    for split in ("training", "validation"):
        here, there = Echo(split), OpenEnvGame(split, server.url)
        assert there.instruction.endswith(here.instruction)
        shown = set()
        for seed in range(200):
            text = there.reset(seed).text
            assert text == here.reset(2 * seed + (split == "validation")).text
            shown.add(text)
            reply = here.solution()[0] if seed % 2 else "Up"
            assert there.step(reply) == here.step(reply)
        # Validation has fifteen texts of three words.
        assert len(shown) > 10
        there.close()


def test_rows_of_a_pool_each_have_a_session(server):
    spec = GameSpec(GAME, {"url": server.url}, num_workers=2)
    pool = Pool(spec, "training", NUM_ROWS)
    try:
        for step in range(3):
            seeds = [step // 2] * NUM_ROWS
            answers = pool.reset(seeds, [None] * NUM_ROWS)
            assert {answer.failure for answer in answers} == {None}
            assert len({answer.text for answer in answers}) == 1
            assert server.sessions.num_open == NUM_ROWS
            last = answers[0].text.split()[-1]
            steps = pool.step(dict.fromkeys(range(NUM_ROWS), last))
            assert all(answer.info["success"] for answer in steps.values())
    finally:
        pool.close()
    # Workers are killed; the server sees their sockets close.
    assert server.sessions.wait_closed(10.0)


def test_a_run_that_needs_more_sessions_is_refused_before_it_starts(server):
    config = world.get_config()
    config.env.host = f"openenv:{server.url.replace('http', 'ws')}"
    with pytest.raises(ValueError, match=r"can play 6 .*needs 512 .*max_sessions=512"):
        build_program(config)
    # Only a run needs as many; an evaluation says what it plays.
    config.evaluation.num_prompts = 2
    open_program(config)


def test_more_rows_than_sessions_fail_with_the_cure(server):
    spec = GameSpec(GAME, {"url": server.url}, num_workers=1)
    pool = Pool(spec, "training", NUM_ROWS + 1)
    try:
        answers = pool.reset([0] * (NUM_ROWS + 1), [None] * (NUM_ROWS + 1))
        failures = [answer.failure for answer in answers if answer.failure]
        assert len(failures) == 1
        assert "has no room for another session" in failures[0]
        assert "or use fewer rows" in failures[0]
    finally:
        pool.close()
    assert server.sessions.wait_closed(10.0)


def test_a_game_that_breaks_there_fails_here_and_the_next_episode_is_played():
    with serving(host_game("tests.host_games.games:Faulty")) as server:
        game = OpenEnvGame("training", server.url)
        game.reset(1)
        with pytest.raises(ConnectionError, match="RuntimeError: broken on purpose"):
            game.step("raise")
        assert game.reset(1).text == "seed 2"
        assert game.step("a").reward == 1.0
        game.close()
        assert server.sessions.wait_closed(10.0)


def test_an_environment_of_arrays_shows_its_board_without_the_rules():
    with serving(build_game(make(frozen_lake))) as server:
        game = OpenEnvGame("validation", server.url)
        assert game.instruction.startswith("FrozenLake\nYou play a game in text")
        board = game.reset(0).text
        assert len(board.split("\n")) == 4
        step = game.step("nonsense")
        assert step.info == {"success": False, "valid": False}
        assert step.observation.text == board
        game.close()


@pytest.mark.parametrize("observation", ["image", "both"])
def test_boards_are_served_as_pictures(observation):
    config = make(frozen_lake)
    config.prompt.observation = observation
    with serving(build_game(config)) as running:
        there, blind = (
            OpenEnvGame("training", running.url, images=images)
            for images in (True, False)
        )
        first, without = there.reset(3), blind.reset(3)
        assert without.text == first.text
        assert without.images == ()
        assert ("(see the picture)" in first.text) == (observation == "image")
        after = there.step("<answer>Right || Down</answer>").observation
        for seen in (first, after):
            (picture,) = seen.images
            assert picture.shape == (4 * 28, 4 * 28, 3)
        assert (first.images[0] != after.images[0]).any()
        there.close()
        blind.close()
        unsaid = OpenEnvGame("training", running.url)
        with pytest.raises(OpenEnvError, match=r"env\.kwargs\.images=True shows them"):
            unsaid.reset(3)


def test_images_that_are_none_end_the_episode_with_a_reason():
    with pytest.raises(ValueError, match="no PNG file in base64"):
        read_png_base64("aGVsbG8=")
    with pytest.raises(ValueError, match="no PNG file in base64"):
        read_png_base64(7)
    # Pixels of several blocks, one of which is of another kind.
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8)
    first, second, *rest = base64.b64decode(png_base64(noise)).split(b"IDAT")
    damaged = b"IDAT".join([first, second + b"I!AT" + rest[0], *rest[1:]])
    with pytest.raises(ValueError, match="no PNG file"):
        read_png_base64(base64.b64encode(damaged).decode())
    with pytest.raises(ValueError, match='images are "x", not a list'):
        find_images({"images": "x"})
    whole = np.zeros((2, 3, 3), np.uint8)
    whole[1, 2] = 200
    np.testing.assert_array_equal(read_png_base64(png_base64(whole)), whole)
