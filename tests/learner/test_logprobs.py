"""Chunked log-probabilities: equal to the naive ones, and never all logits at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from ragen_jax.learner.logprobs import hidden_states, map_chunks, token_log_probs
from tests.learner import tiny
from tests.reference import losses_oracle
from tests.reference.update_oracle import naive_log_probs

PARAMS = tiny.POLICY.init(jax.random.key(1))
TOKENS = jax.random.randint(jax.random.key(2), (3, 11), 0, tiny.VOCAB_SIZE)
# Tokens that are asked for: of every row some, those of one end, none.
MASK = jnp.array([[0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 1], [0] * 8 + [1] * 3, [0] * 11], bool)


def chunked(params, tokens=TOKENS, mask=None, *, chunk_tokens=12, temperature=0.7):
    return token_log_probs(
        tiny.POLICY,
        params,
        hidden_states(tiny.POLICY, params, tokens),
        tokens,
        mask,
        temperature=temperature,
        chunk_tokens=chunk_tokens,
    )


def weighted(function):
    """Value and gradient of a weighted sum of what a function returns."""

    def loss(params, weights):
        log_probs, entropy = function(params)
        return jnp.sum(log_probs * weights[0] + entropy * weights[1])

    return jax.jit(jax.value_and_grad(loss))


NAIVE = weighted(lambda p: naive_log_probs(tiny.POLICY, p, TOKENS, 0.7))


@pytest.mark.parametrize("mask", [None, MASK, ~MASK], ids=["all", "few", "many"])
@pytest.mark.parametrize("chunk_tokens", [1, 4, 12, 21, 1000])
def test_value_and_gradient_equal_naive(chunk_tokens, mask):
    weights = jax.random.normal(jax.random.key(3), (2, *TOKENS.shape))
    if mask is not None:
        weights *= mask[None].astype(weights.dtype)

    found = weighted(lambda p: chunked(p, mask=mask, chunk_tokens=chunk_tokens))
    value, gradient = found(PARAMS, weights)
    expected = NAIVE(PARAMS, weights)
    np.testing.assert_allclose(value, expected[0], rtol=1e-5)
    for name in gradient:
        np.testing.assert_allclose(
            gradient[name], expected[1][name], rtol=1e-5, atol=1e-5, err_msg=name
        )


def test_numbers_of_other_tokens_are_0():
    for found, everything in zip(
        chunked(PARAMS, mask=MASK, chunk_tokens=4), chunked(PARAMS), strict=True
    ):
        np.testing.assert_array_equal(found, jnp.where(MASK, found, 0.0))
        np.testing.assert_allclose(found, jnp.where(MASK, everything, 0.0), atol=1e-6)


@pytest.mark.parametrize(("mask", "expected"), [(None, 9), (MASK, 3), (~MASK, 6)])
def test_the_head_runs_over_what_is_asked_for(mask, expected):
    """Chunks that are computed: of all 33 tokens, of 10 and of 23, 4 at a time."""
    num_chunks = []

    def head(hidden, targets):
        jax.debug.callback(lambda: num_chunks.append(len(hidden)))
        return (jnp.sum(hidden, axis=-1) + targets.astype(hidden.dtype),)

    def total(hidden):
        return jnp.sum(map_chunks(head, hidden, TOKENS, mask, chunk_tokens=4)[0])

    hidden = jnp.ones((*TOKENS.shape, 5))
    jax.block_until_ready(jax.jit(total)(hidden))
    jax.effects_barrier()
    assert num_chunks == [4] * expected
    # Once more for the gradient.
    del num_chunks[:]
    jax.block_until_ready(jax.jit(jax.value_and_grad(total))(hidden))
    jax.effects_barrier()
    assert num_chunks == [4] * (2 * expected)


def test_a_frozen_head_costs_no_gradient():
    """As under adapters: the product that would be its gradient is not computed."""
    chunk, hidden = 4, jax.random.normal(jax.random.key(4), (3, 10, tiny.WIDTH))

    def loss(weight, head):
        params = PARAMS | {"head": head}
        log_probs, _ = token_log_probs(
            tiny.POLICY,
            params,
            weight * jnp.pad(hidden, [(0, 0), (0, 1), (0, 0)]),
            TOKENS,
            MASK,
            temperature=1.0,
            chunk_tokens=chunk,
        )
        return jnp.sum(log_probs)

    def flops(wanted):
        lowered = jax.jit(jax.grad(loss, wanted)).lower(1.0, PARAMS["head"])
        # With the passes over loops that remove what is not needed.
        compiled = lowered.compile({"xla_disable_hlo_passes": ""})
        return compiled.cost_analysis()["flops"]

    # Of a chunk: loops count as one turn.
    product = 2 * chunk * tiny.VOCAB_SIZE * tiny.WIDTH
    assert flops((0, 1)) - flops(0) >= product


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_equals_oracle_token_by_token(temperature):
    log_probs, entropy = chunked(PARAMS, temperature=temperature)
    order = jnp.tile(jnp.arange(11)[None], (3, 1))
    logits = tiny.POLICY.logits(
        PARAMS, tiny.POLICY.forward(PARAMS, TOKENS, order, None)[0]
    )
    for row in range(3):
        for t in range(1, 11):
            expected = losses_oracle.log_softmax(
                [float(x) for x in logits[row, t - 1]], temperature
            )
            token = int(TOKENS[row, t])
            assert log_probs[row, t] == pytest.approx(expected[token], abs=1e-5)
            assert entropy[row, t] == pytest.approx(
                losses_oracle.entropy(expected), abs=1e-5
            )


def test_nothing_precedes_the_first_token():
    log_probs, entropy = chunked(PARAMS)
    assert log_probs.shape == entropy.shape == TOKENS.shape
    assert log_probs.dtype == entropy.dtype == jnp.float32
    assert not log_probs[:, 0].any()
    assert not entropy[:, 0].any()
    assert (log_probs[:, 1:] < 0).all()


def test_later_tokens_do_not_matter():
    changed = TOKENS.at[:, 6].set((TOKENS[:, 6] + 1) % tiny.VOCAB_SIZE)
    for a, b in zip(chunked(PARAMS), chunked(PARAMS, changed), strict=True):
        np.testing.assert_array_equal(a[:, :6], b[:, :6])
        assert (a[:, 7:] != b[:, 7:]).any()


def sizes_with_vocabulary(jaxpr):
    """Numbers of tokens of every array with a vocabulary axis, loops included."""
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            shape = variable.aval.shape
            if shape and shape[-1] == tiny.VOCAB_SIZE and shape[:1] != (tiny.WIDTH,):
                yield int(np.prod(shape[:-1]))
        for inner in jaxprs_in_params(equation.params):
            yield from sizes_with_vocabulary(inner)


@pytest.mark.parametrize(("chunk_tokens", "largest"), [(6, 6), (1000, 30)])
def test_logits_of_one_chunk_exist_at_a_time(chunk_tokens, largest):
    def loss(params):
        log_probs, entropy = chunked(params, chunk_tokens=chunk_tokens)
        return jnp.sum(log_probs + entropy)

    jaxpr = jax.make_jaxpr(jax.grad(loss))(PARAMS)
    assert max(sizes_with_vocabulary(jaxpr.jaxpr)) == largest
