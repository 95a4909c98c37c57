"""The whole update: its metrics, and what it must not depend on."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.learner.metrics import METRICS
from tests.learner import tiny
from tests.reference import update_oracle
from tests.trajectories import make_trajectory

REWARDS = [0, 1, 0, 0, 5, 1, 1, 1, 2, 2, 2, 2, 0, 3, -1, 0.5]
KEY = jax.random.key(7)


@pytest.fixture(scope="module")
def trajectory():
    return make_trajectory([float(r) for r in REWARDS])


@pytest.fixture(scope="module")
def usual(trajectory):
    return after(trajectory)


def after(trajectory, mesh=(1, 1, 1), **settings):
    state, update = tiny.build(mesh, **settings)
    state, stats, _ = update(state, trajectory, KEY)
    return tiny.host(state), jax.device_get(stats)


def test_microbatches_and_chunks_do_not_matter(trajectory, usual):
    """All kept rows at once, all logits at once."""
    state, stats = after(trajectory, microbatch_rows=8, logprob_chunk_tokens=4096)
    chex.assert_trees_all_close(state.params, usual[0].params, atol=1e-6)
    chex.assert_trees_all_close(stats, usual[1], atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        ({}, {}),
        ({"old_log_probs": "learner", "advantage": "gae"}, {"microbatch_rows": 2}),
    ],
    ids=["grpo", "gae, two rows at a time"],
)
def test_widths_do_not_matter(trajectory, changes, settings):
    """Rows of similar lengths share a pass, cut behind their last trained token."""
    whole = after(trajectory, **changes)
    cut = after(trajectory, learner__num_widths=4, **settings, **changes)
    chex.assert_trees_all_close(cut[0].params, whole[0].params, atol=1e-6)
    chex.assert_trees_all_close(cut[1], whole[1], atol=1e-5)


@pytest.mark.parametrize(
    ("mesh", "num_widths"),
    [
        ((4, 2, 1), 1),
        ((2, 2, 2), 1),
        pytest.param((2, 2, 2), 3, marks=pytest.mark.slow),
    ],
)
def test_devices_do_not_matter(trajectory, usual, mesh, num_widths):
    settings = {"microbatch_rows": 8, "learner__num_widths": num_widths}
    state, stats = after(trajectory, mesh, **settings)
    chex.assert_trees_all_close(state.params, usual[0].params, atol=1e-6)
    chex.assert_trees_all_close(stats, usual[1], atol=1e-5)


def test_same_inputs_same_bits(trajectory, usual):
    chex.assert_trees_all_equal(after(trajectory)[0], usual[0])


def test_order_follows_the_key(trajectory):
    states = []
    for key in (KEY, jax.random.key(8)):
        state, update = tiny.build(minibatch_rows=4)
        states.append(tiny.host(update(state, trajectory, key)[0]))
    assert (states[0].params["mix"] != states[1].params["mix"]).any()


def test_padding_does_not_matter(trajectory, usual):
    """Anything may stand behind a row's last token, and any log-prob off the mask."""
    is_token = np.arange(12)[None] < np.asarray(trajectory.lengths)[:, None]
    mask = trajectory.loss_mask
    noisy = trajectory.replace(
        tokens=jnp.where(is_token, trajectory.tokens, 10**6),
        sample_log_probs=jnp.where(mask, trajectory.sample_log_probs, jnp.nan),
    )
    chex.assert_trees_all_equal(after(noisy), usual)


def test_dropped_groups_do_not_matter(trajectory, usual):
    """Groups 1 and 3 spread most: what the others hold is not looked at."""
    dropped = (np.arange(16) // 4 % 2 == 0)[:, None]
    noisy = trajectory.replace(
        tokens=jnp.where(dropped, 3, trajectory.tokens),
        loss_mask=trajectory.loss_mask ^ dropped,
        sample_log_probs=jnp.where(dropped, -9.0, trajectory.sample_log_probs),
    )
    chex.assert_trees_all_equal(after(noisy)[0], usual[0])


def test_a_row_without_trained_tokens_is_harmless(trajectory):
    """It counts for the score of its group, and for nothing else."""
    empty = jnp.arange(16)[:, None] == 4
    quiet = trajectory.replace(loss_mask=trajectory.loss_mask & ~empty)
    noisy = quiet.replace(tokens=jnp.where(empty, 3, quiet.tokens))
    (state, stats), (other, _) = after(quiet), after(noisy)
    chex.assert_trees_all_equal(state, other)
    chex.assert_tree_all_finite((state, stats))


def test_reports_what_it_documents(usual):
    state, stats = usual
    declared = {metric.name for metric in METRICS}
    assert set(stats) == {n for n in declared if not n.startswith("critic/")}
    for name, value in stats.items():
        assert value.dtype == np.float32, name
        assert value.shape == (), name
    assert state.iteration == 1
    assert stats["actor/lr"] == np.float32(tiny.OPTIMIZER["learning_rate"])


def test_filter_metrics(usual):
    stats = usual[1]
    stds = np.asarray(REWARDS).reshape(4, 4).std(axis=1, ddof=1)
    assert stats["rollout/in_group_reward_std"] == pytest.approx(stds.mean())
    assert stats["rollout/chosen_in_group_reward_std"] == pytest.approx(
        stds[[1, 3]].mean()
    )
    assert stats["rollout/filter_kept_ratio"] == 0.5
    assert stats["rollout/filter_kept_count"] == 2
    assert stats["rollout/filter_zero_count"] == 1


def test_loss_metrics(trajectory, usual):
    """One minibatch: every mean is over the kept rows' trained tokens."""
    stats = usual[1]
    start = tiny.make_state()
    log_probs, entropy = update_oracle.naive_log_probs(
        tiny.POLICY, start.params, trajectory.tokens, tiny.TEMPERATURE
    )
    mask = np.asarray(trajectory.loss_mask) & (np.arange(16) // 4 % 2 == 1)[:, None]
    difference = np.asarray(log_probs - trajectory.sample_log_probs)[mask]
    expected = {
        "actor/entropy": np.asarray(entropy)[mask].mean(),
        "actor/ppo_kl": -difference.mean(),
        "actor/sampler_log_prob_difference": np.abs(difference).mean(),
        "actor/sampler_log_prob_difference_max": np.abs(difference).max(),
        "actor/num_tokens": mask.sum(),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(stats[name], value, rtol=1e-4, err_msg=name)
    assert 0 < stats["actor/pg_clipfrac"] < 1


def test_the_credit_of_an_episode_is_its_advantage_in_its_group(trajectory):
    state, update = tiny.build(advantage="grpo")
    _, _, credit = update(state, trajectory, KEY)
    rewards = np.asarray(REWARDS).reshape(4, 4)
    is_kept = np.repeat([False, True, False, True], 4)
    np.testing.assert_array_equal(credit.kept, is_kept)
    above = rewards - rewards.mean(axis=1, keepdims=True)
    deviations = rewards.std(axis=1, keepdims=True, ddof=1)
    expected = (above / (deviations + 1e-6)).reshape(-1) * is_kept
    # Turns of several tokens: the advantage is their mean, not their sum.
    assert trajectory.loss_mask.sum(axis=1).min() > 1
    np.testing.assert_allclose(credit.advantages[:, 0], expected, atol=1e-5)


def test_sampler_difference_is_measured_before_any_step(trajectory):
    start = tiny.make_state()
    log_probs, _ = update_oracle.naive_log_probs(
        tiny.POLICY, start.params, trajectory.tokens, tiny.TEMPERATURE
    )
    own = trajectory.replace(
        sample_log_probs=jnp.where(trajectory.loss_mask, log_probs, 0.0)
    )
    _, stats = after(own, minibatch_rows=4)
    assert stats["actor/sampler_log_prob_difference"] < 1e-6
    assert stats["actor/sampler_log_prob_difference_max"] < 1e-5
    assert abs(stats["actor/ppo_kl"]) > 1e-3
