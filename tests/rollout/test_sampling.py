"""The sampler: distribution, truncation sets, independence of neighbours."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax import rngs
from ragen_jax.models.policy import SPARE_LOGIT
from ragen_jax.rollout import sampling
from ragen_jax.rollout.sampling import (
    check_options,
    keep_top_k,
    keep_top_p,
    sample,
)

DRAWS = 20_000


def invert_cdf(scores, uniforms):
    """Indices drawn in proportion to `exp(scores)` by numbers in [0, 1)."""
    row = jax.tree.map(lambda x: x[0], sampling._in_blocks(scores[None]))
    return jax.vmap(sampling._draw, in_axes=(None, 0))(row, uniforms)[0]


def _keys(count, seed=0):
    return rngs.rows(jax.random.key(seed), count)


def _probabilities(logits):
    weights = np.exp(np.float64(logits) - np.max(logits))
    return weights / weights.sum()


@jax.jit
def _sample(keys, logits, temperature=1.0, top_k=None, top_p=None):
    logits = jnp.broadcast_to(logits[None, :], (keys.shape[0], logits.shape[0]))
    return sample(keys, logits, temperature=temperature, top_k=top_k, top_p=top_p)


@pytest.mark.parametrize(("vocab", "temperature"), [(13, 1.0), (13, 0.5), (700, 2.0)])
def test_draws_follow_the_distribution(vocab, temperature):
    """Pearson's chi-square; a correct sampler fails one seed in about 10^6."""
    logits = np.random.default_rng(vocab).normal(size=vocab).astype(np.float32)
    tokens, _ = _sample(_keys(DRAWS), jnp.asarray(logits), temperature=temperature)
    expected = DRAWS * _probabilities(logits / temperature)
    counts = np.bincount(np.asarray(tokens), minlength=vocab)
    statistic = np.sum((counts - expected) ** 2 / expected)
    # Wilson and Hilferty's quantile of chi-square at normal quantile 4.75 (1e-6).
    freedom = vocab - 1
    limit = freedom * (1 - 2 / (9 * freedom) + 4.75 * np.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit


def test_log_probs_ignore_truncation():
    logits = np.random.default_rng(1).normal(size=50).astype(np.float32)
    tokens, log_probs = _sample(
        _keys(500), jnp.asarray(logits), temperature=0.7, top_k=5, top_p=0.8
    )
    expected = np.log(_probabilities(logits / 0.7))[np.asarray(tokens)]
    np.testing.assert_allclose(log_probs, expected, atol=2e-6)


def test_greedy_takes_the_first_best_and_reports_temperature_one():
    logits = np.float32([0.0, 3.0, -1.0, 3.0, 1.0])
    tokens, log_probs = _sample(_keys(4), jnp.asarray(logits), temperature=0.0)
    np.testing.assert_array_equal(tokens, [1, 1, 1, 1])
    np.testing.assert_allclose(log_probs, np.log(_probabilities(logits)[1]), atol=1e-6)


def _top_k_oracle(weights, k):
    border = np.sort(weights)[::-1][min(k, len(weights)) - 1]
    return weights >= border


def _top_p_oracle(weights, p):
    order = np.argsort(-weights, kind="stable")
    total, mass = weights.sum(), 0.0
    for index in order:
        border = weights[index]
        mass += weights[index]
        if mass >= p * total:
            break
    return weights >= border


@pytest.mark.parametrize("seed", range(5))
def test_truncation_sets_match_the_oracle_with_ties(seed):
    rng = np.random.default_rng(seed)
    # Multiples of 1/64 sum exactly, so that the oracle and the kernel agree on borders.
    weights = rng.integers(0, 9, size=(20, 40)).astype(np.float32) / 64
    weights[:, 0] = 1 / 64
    for k in (1, 3, 40, 100):
        expected = [_top_k_oracle(row, k) for row in weights]
        np.testing.assert_array_equal(keep_top_k(jnp.asarray(weights), k), expected)
    assert keep_top_p(jnp.asarray(weights), 1.0).all()
    for p in (0.01, 0.3, 0.9):
        expected = [_top_p_oracle(row, np.float32(p)) for row in weights]
        np.testing.assert_array_equal(keep_top_p(jnp.asarray(weights), p), expected)


def test_truncated_tokens_are_never_drawn_and_all_others_are():
    logits = jnp.asarray(np.log(np.float32([0.3, 0.05, 0.3, 0.2, 0.1, 0.05])))
    by_k, _ = _sample(_keys(DRAWS), logits, top_k=3)
    assert set(np.asarray(by_k).tolist()) == {0, 2, 3}
    by_p, _ = _sample(_keys(DRAWS), logits, top_p=0.85)
    assert set(np.asarray(by_p).tolist()) == {0, 2, 3, 4}
    # top-p counts within what top-k left: 0.3 / 0.8 + 0.3 / 0.8 reaches 0.7.
    both, _ = _sample(_keys(DRAWS), logits, top_k=3, top_p=0.7)
    assert set(np.asarray(both).tolist()) == {0, 2}
    shares = np.bincount(np.asarray(by_k), minlength=6) / DRAWS
    # Five standard deviations of a share.
    np.testing.assert_allclose(shares[[0, 2, 3]], [0.375, 0.375, 0.25], atol=0.0175)


def test_a_draw_depends_on_its_own_row_alone():
    logits = jax.random.normal(jax.random.key(3), (32, 100))
    keys = _keys(32)
    options = {"temperature": 1.0, "top_k": 20, "top_p": 0.9}
    draw = jax.jit(functools.partial(sample, **options))
    tokens, log_probs = draw(keys, logits)
    few_tokens, few_log_probs = draw(keys[5:8], logits[5:8])
    np.testing.assert_array_equal(few_tokens, tokens[5:8])
    np.testing.assert_allclose(few_log_probs, log_probs[5:8], atol=1e-6)
    other = jnp.where(jnp.arange(32)[:, None] == 6, logits, 0.0)
    assert draw(keys, other)[0][6] == tokens[6]


def test_inverse_cdf_of_a_large_vocabulary_is_exact():
    """Every entry of 151,936 equal weights is hit by a number in its own interval."""
    vocab = 151_936
    invert = jax.jit(invert_cdf)
    chosen = np.linspace(0, vocab - 1, 97).astype(int)
    uniforms = jnp.asarray((chosen + 0.5) / vocab, jnp.float32)
    np.testing.assert_array_equal(invert(jnp.zeros(vocab), uniforms), chosen)
    # The same with a steep distribution whose tail a single running sum would lose.
    weights = np.full(vocab, 1e-6, np.float32)
    weights[0] = 1.0
    ends = np.cumsum(np.float64(weights)) / np.sum(np.float64(weights))
    middles = jnp.asarray((ends[chosen[1:]] + ends[chosen[1:] - 1]) / 2, jnp.float32)
    found = np.asarray(invert(jnp.log(jnp.asarray(weights)), middles))
    np.testing.assert_allclose(found, chosen[1:], atol=2)


@pytest.mark.parametrize("vocab", [1, 13, 700])
def test_both_ways_to_sum_the_weights_of_blocks_are_equal(vocab):
    """GPUs reduce pairs in one pass; impossible entries and whole blocks of them."""
    scores = 30 * np.random.default_rng(0).normal(size=(9, 4, vocab))
    scores[1, 2], scores[3, :, 0], scores[5] = -np.inf, -np.inf, -np.inf
    scores = jnp.asarray(scores, jnp.float32)
    highest, sums = jax.jit(sampling._two_passes)(scores)
    run_concurrently = jax.jit(sampling._one_pass)(scores)
    np.testing.assert_array_equal(run_concurrently[0], highest)
    np.testing.assert_allclose(run_concurrently[1], sums, rtol=1e-5)
    assert not sums[1, 2]


def test_no_number_reaches_a_zero_entry():
    weights = jnp.zeros(1000).at[jnp.array([3, 500, 640])].set(jnp.array([0.1, 1, 0.3]))
    last = np.nextafter(np.float32(1), np.float32(0))
    uniforms = jnp.asarray(np.append(np.linspace(0, 0.999, 300), last), jnp.float32)
    found = invert_cdf(jnp.log(weights), uniforms)
    assert set(np.asarray(found).tolist()) == {3, 500, 640}
    assert found[0] == 3
    assert found[-1] == 640
    impossible = jnp.array([-jnp.inf, 0.0, -jnp.inf])
    tokens, log_probs = _sample(_keys(50), impossible)
    np.testing.assert_array_equal(tokens, 1)
    np.testing.assert_array_equal(log_probs, 0.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -1.0), ("temperature", np.nan), ("top_k", 0), ("top_p", 0.0)],
)
def test_options_out_of_range_are_refused(name, value):
    options = {"temperature": 1.0, "top_k": None, "top_p": None} | {name: value}
    with pytest.raises(ValueError, match=name):
        check_options(**options)


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.3])
def test_spare_ids_leave_the_others_as_they_are(temperature):
    """A block of nothing else, at temperatures by which division rounds."""
    logits = np.random.default_rng(4).normal(size=384).astype(np.float32)
    logits[360:] = SPARE_LOGIT
    rows = jnp.asarray(np.tile(logits, (8, 1)))
    how = {"temperature": jnp.float32(temperature)}
    tokens, log_probs = jax.jit(sample)(_keys(8), rows, **how)
    expected = np.log(_probabilities(logits[:360] / temperature))[np.asarray(tokens)]
    np.testing.assert_allclose(log_probs, expected, atol=1e-5)
