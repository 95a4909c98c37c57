"""What games of Gymnasium's and of RAGEN's environments have in common."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.host_games.adapters.common import spread_seed
from ragen_jax.host_games.adapters.gymnasium import GymnasiumGame
from ragen_jax.host_games.adapters.ragen import RagenGame
from ragen_jax.host_games.base import SPLITS
from ragen_jax.host_games.workers.pool import GameSpec, Pool
from ragen_jax.host_games.wrappers import wrap
from tests.host_games.adapters.games import GUESS, LAKE, LINE, SUM, THROUGH_THE_LAKE

NOT_ACTIONS = ["", " ", "0", "1", "Up!", "North", "Left || Left", "Left.", "\x00"]


@pytest.mark.parametrize("reply", [*NOT_ACTIONS, "left " * 10_000])
@pytest.mark.parametrize(
    ("game", "untouched"),
    [
        (GymnasiumGame(**LAKE), lambda env: env.unwrapped.lastaction is None),
        (RagenGame(**LINE), lambda env: env.num_steps == 0),
    ],
)
def test_other_replies_do_not_reach_the_environment(game, untouched, reply):
    shown = game.reset(3)
    step = game.step(reply)
    assert step.observation == shown
    assert (step.reward, step.terminated, step.truncated) == (0.0, False, False)
    assert step.info == {"success": False, "valid": False}
    assert untouched(game._env)


@settings(deadline=None)
@given(st.lists(st.text(max_size=50), min_size=1, max_size=4), st.integers(0, 2**31))
def test_any_reply_is_a_step(replies, seed):
    for options in (LAKE, {"id": GUESS}, LINE, SUM):
        make = RagenGame if "env" in options else GymnasiumGame
        game = wrap(make(**options), [("split", 2)])
        game.reset(seed)
        for reply in replies:
            step = game.step(reply)
            assert set(step.info) == {"success", "valid"}
            if step.terminated or step.truncated:
                break


def test_splits_have_their_own_seeds():
    seeds = {split: {spread_seed(split, s) for s in range(1000)} for split in SPLITS}
    assert all(len(each) == 1000 for each in seeds.values())
    assert not seeds["training"] & seeds["validation"]
    largest = [spread_seed(split, 2**31 - 1) for split in SPLITS]
    assert max(largest) == 2**31 - 1


@pytest.mark.parametrize(("make", "options"), [(GymnasiumGame, LAKE), (RagenGame, SUM)])
def test_there_are_no_tasks(make, options):
    with pytest.raises(ValueError, match="no tasks"):
        make(**options).reset(0, task=1)


# Arguments reach workers as JSON, which has no numbers as keys.
RENAMED = {**LINE, "config_kwargs": {"action_lookup": {1: "West", 2: "East"}}}


@pytest.mark.parametrize(
    ("make", "options", "replies"),
    [(GymnasiumGame, LAKE, THROUGH_THE_LAKE), (RagenGame, RENAMED, ["east"])],
)
def test_workers_play_them(make, options, replies):
    spec = GameSpec(f"{make.__module__}:{make.__name__}", options, num_workers=1)
    pool, game = Pool(spec, "validation", 2), make("validation", **options)
    try:
        shown = pool.reset([4, 5], [None, None])
        assert [each.failure for each in shown] == [None, None]
        assert shown[1].text == game.reset(5).text
        for reply in replies:
            answer, step = pool.step({1: reply})[1], game.step(reply)
            assert (answer.text, answer.reward) == (step.observation.text, step.reward)
            assert (answer.terminated, answer.info) == (step.terminated, step.info)
            assert answer.info["valid"]
    finally:
        pool.close()
