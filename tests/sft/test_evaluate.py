"""Scores of a fine-tuned model."""

import jax
import jax.numpy as jnp
import pytest

from ragen_jax.models.families import new_config
from ragen_jax.models.policy import build_policy
from ragen_jax.program.build import POCKET
from ragen_jax.sft.data import build_tasks
from ragen_jax.sft.evaluate import make_score, thought_scores
from ragen_jax.text.tokenizer import load_tokenizer
from tests.sft import tiny
from tests.trajectories import make_trajectory


@pytest.fixture(scope="module")
def tasks():
    return build_tasks(tiny.new_config(), load_tokenizer(POCKET), 16)


def test_a_greedy_player_is_scored(tasks):
    """Temperature 0 is greedy, as everywhere."""
    shape = new_config(
        vocab_size=384, head_dim=8, tie_word_embeddings=True, **tiny.SHAPE
    )
    policy = build_policy(shape)
    score = make_score(policy, tasks, num_prompts=2, temperature=0.0, seed=0)
    scores = score(policy.init(jax.random.key(0)))["bandit"]
    assert 0 <= scores["success"] <= 1
    assert scores["held_out"] == 0  # Bandit has too few levels
    assert scores["regret"] == scores["ceiling"] - scores["success"]


def test_scores_tell_thinking_rows_from_the_others(tasks):
    tokenizer = tasks["bandit"].tokenizer
    (end_of_thought,) = tokenizer.encode("</think>")
    trajectory = make_trajectory([0.0, 1.0, 1.0, 0.0])
    tokens = jnp.tile(jnp.array([[end_of_thought, 6]], jnp.int32), (4, 1))
    starts = jnp.array([[0], [0], [1], [1]], jnp.int32)
    num_valid = jnp.array([[1], [0], [2], [2]], jnp.int32)
    turns = trajectory.turns.replace(
        reply_start=starts,
        num_valid=num_valid,
        num_executed=num_valid,
        has_format=jnp.array([[True], [True], [True], [False]]),
    )
    trajectory = trajectory.replace(
        tokens=tokens, turns=turns, success=jnp.array([False, True, True, True])
    )
    scores = thought_scores(tasks["bandit"], trajectory)
    assert {k: float(v) for k, v in scores.items()} == {
        "thinking": 0.5,
        "success_thinking": 1.0,
        "success_not_thinking": 0.5,
        "bad_format": 0.5,
        "actions_per_turn": 1.25,
    }
