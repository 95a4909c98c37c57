"""Gradients by bucket: against an oracle that differentiates by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.diagnostics.gradient_buckets import make_bucket_gradients, parts_of
from tests.learner import tiny
from tests.reference import learner_oracle as oracle
from tests.reference import losses_oracle as losses
from tests.reference.tiny_network import Reading, norm_of

NUM_BUCKETS = 3
# Of four groups: one bucket of one group, one of none, one of three.
BUCKETS = np.array([2, 0, 2, 2])
PPO = {
    "algo__advantage": "gae",
    "critic__trunk": "shared",
    "kl__placement": "loss",
    "kl__coeff": 0.3,
    "loss__aggregation": "seq_mean_token_mean",
    "loss__old_log_probs": "learner",
    "loss__importance_cap": 1.1,
    "minibatch_rows": 3,
    "microbatch_rows": 3,
}


def measure(paid=None, **settings):
    """What the program says of a policy that has moved, and what the oracle says.

    `paid`: the episodes with the rewards that are learned from; None: the same.
    """
    config = tiny.make_config(**settings)
    learner = tiny.learner(**settings)
    start = tiny._init(jax.random.key(0))
    state = learner.init(start, 0)
    moved = jax.tree.map(lambda x: 1.05 * x + 0.02, state.policy.params)
    state = state.replace(policy=state.policy.replace(params=moved))
    program = make_bucket_gradients(
        learner.make_stages,
        learner.stages.passes.mesh,
        num_groups=4,
        group_size=4,
        num_buckets=NUM_BUCKETS,
    )
    episodes = tiny.make_episodes()
    measured = jax.device_get(
        program(
            learner.freeze(start),
            learner.numbers,
            state,
            episodes,
            jnp.asarray(BUCKETS),
        )
    )
    critic = None if state.critic is None else tiny.host(state).critic.params
    paid = episodes if paid is None else paid
    expected = expect(config, paid, tiny.host(state).params, start, critic)
    return parts_of(learner.stages.passes), measured, expected


def expect(config, episodes, params, start, critic):
    """(part, bucket) -> norm, loss, mean square; bucket -> tokens."""
    one, rows = oracle.Learner(config, params, critic), oracle._as_numpy(episodes)
    temperature = config.rollout.temperature
    policy, values = one._read(rows.tokens)
    mask, reference = rows.mask, oracle.Network(start).params
    ref = Reading(reference, rows.tokens, temperature).log_probs
    old = np.where(mask, rows.sampled, 0.0)
    if config.loss.old_log_probs == "learner":
        old = policy.log_probs
    credit = oracle.assign(config, rows, mask, old, ref, values, 1.0, config.kl.coeff)
    by_hand, counts = {}, []
    for b in range(NUM_BUCKETS + 1):
        groups = np.flatnonzero((b == BUCKETS) | (b == NUM_BUCKETS))
        chosen = (4 * groups[:, None] + np.arange(4)).reshape(-1)
        counts.append(mask[chosen].sum())
        for part in ("task", "entropy", "kl"):
            loss, slopes = 0.0, np.zeros((2, *mask.shape))
            weights = oracle.token_weights(config.loss.aggregation, mask[chosen])
            for (i, t), weight in weights if len(chosen) else ():
                place = chosen[i], t
                pair = policy.log_probs[place], ref[place]
                if part == "task":
                    token = pair[0], old[place], credit["advantages"][place]
                    value, slope = oracle.policy_loss(config.loss, token, None)
                    factor = 1.0
                    if config.loss.importance_cap is not None:
                        factor = losses.importance_weight(
                            old[place], rows.sampled[place], config.loss.importance_cap
                        )
                    loss += weight * factor * value
                    slopes[0][place] = weight * factor * slope
                elif part == "entropy":
                    coeff = config.loss.entropy_coeff
                    loss -= weight * coeff * policy.entropy[place]
                    slopes[1][place] = -weight * coeff
                else:
                    estimator, coeff = config.kl.estimator, config.kl.coeff
                    loss += weight * coeff * losses.kl(estimator, *pair)
                    slope = losses.kl_gradient(estimator, *pair)
                    slopes[0][place] = weight * coeff * slope
            contributions = [
                policy.gradient(*(slopes * (np.arange(16) // 4 == g)[None, :, None]))[0]
                for g in groups
            ]
            total = {n: sum((c[n] for c in contributions), 0.0) for n in params}
            squares = sum(norm_of(c) ** 2 for c in contributions) * len(groups)
            norm = norm_of(total) if contributions else 0.0
            by_hand[part, b] = norm, loss, squares
    return by_hand, counts


def opposite(rewards):
    return -rewards


def test_rewards_that_replace_the_games_are_measured():
    episodes = tiny.make_episodes()
    turns = episodes.turns.replace(reward=-episodes.turns.reward)
    settings = {"minibatch_rows": 8, "algo__reward": f"{__name__}:opposite"}
    _, measured, (by_hand, _) = measure(episodes.replace(turns=turns), **settings)
    losses_by_hand = [by_hand["task", b][1] for b in range(NUM_BUCKETS + 1)]
    np.testing.assert_allclose(measured.losses[0], losses_by_hand, rtol=2e-4)


@pytest.mark.parametrize("settings", [{"minibatch_rows": 8}, PPO], ids=["grpo", "ppo"])
def test_equals_oracle(settings):
    """Buckets of one group, none and three; parts as in the update's own loss."""
    parts, measured, (by_hand, counts) = measure(**settings)
    has_kl = "kl__placement" in settings
    assert parts == {"task": True, "entropy": True, "kl": has_kl}
    np.testing.assert_array_equal(measured.num_tokens, counts)
    for p, (part, is_set) in enumerate(parts.items()):
        columns = measured.norms[p], measured.losses[p], measured.squares[p]
        if not is_set:
            assert not np.any(columns)
            continue
        expected = [by_hand[part, b] for b in range(NUM_BUCKETS + 1)]
        for column, own in zip(columns, zip(*expected, strict=True), strict=True):
            np.testing.assert_allclose(column, own, rtol=2e-4, atol=1e-7)
        assert measured.norms[p][0] > 0
        assert measured.norms[p][1] == measured.num_tokens[1] == 0
