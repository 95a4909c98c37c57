"""Episode rewards: what counts and what does not."""

import numpy as np

from ragen_jax.algo.rewards import episode_rewards, raw_episode_rewards
from tests.trajectories import make_turns

TURNS = make_turns(
    [[1.0, -0.5, 99.0], [0.25, 99.0, 99.0]],
    penalty=[[0.0, -0.1, -99.0], [-0.1, -99.0, -99.0]],
    played=[[True, True, False], [True, False, False]],
)


def test_raw_rewards_are_the_games_alone():
    np.testing.assert_allclose(raw_episode_rewards(TURNS), [0.5, 0.25])


def test_rewards_include_the_penalty():
    np.testing.assert_allclose(episode_rewards(TURNS), [0.4, 0.15], rtol=1e-6)
