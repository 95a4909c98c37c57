"""Decoding: chunks, stops, limits, rows that do not play, what stays in the cache."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax import rngs
from ragen_jax.models.kv_cache import init_cache
from ragen_jax.rollout import decode
from ragen_jax.rollout.decode import Context, Decoding, decode_reply, read
from ragen_jax.rollout.sampling import sample
from ragen_jax.types import TokenSpan
from tests.rollout import players

ROWS, WIDTH, REPLY, SLOTS = 6, 7, 10, 18
ACTIVE = np.asarray([1, 1, 0, 1, 1, 1], bool)
LENGTHS = np.asarray([7, 3, 5, 1, 4, 6], np.int32)


@functools.cache
def _policy():
    return players.speaker()


@functools.cache
def _params():
    """The network, leaning towards token 5, which stops, and 6, which does not."""
    params = jax.jit(_policy().init)(jax.random.key(1))
    bias = params["bias"].at[:, 5].add(5.0).at[:, 6].add(5.0)
    return params | {"bias": bias}


@functools.cache
def _decoded(chunk_tokens=4, max_reply_tokens=REPLY, compactions=None):
    policy, params = _policy(), _params()

    @jax.jit
    def play():
        empty = Context(
            init_cache(policy.config, ROWS, SLOTS, policy.dtype),
            jnp.zeros((ROWS, policy.config.hidden_size)),
        )
        span = TokenSpan(_tokens(), jnp.asarray(LENGTHS))
        context = read(policy, params, empty, span, jnp.zeros(ROWS, jnp.int32))
        return decode_reply(
            policy,
            params,
            context,
            jnp.asarray(LENGTHS),
            jnp.asarray(ACTIVE),
            rngs.rows(jax.random.key(2), ROWS),
            Decoding(
                sampler=functools.partial(
                    sample, temperature=1.0, top_k=None, top_p=None
                ),
                stop_tokens=jnp.asarray([5, 600]),
                max_reply_tokens=max_reply_tokens,
                chunk_tokens=chunk_tokens,
                compactions=compactions,
            ),
        )

    return play()


def _tokens():
    return jax.random.randint(jax.random.key(3), (ROWS, WIDTH), 0, players.VOCAB)


def test_replies_end_at_the_first_stop_token_or_the_limit():
    _, reply = _decoded()
    reply = jax.device_get(reply)
    assert reply.tokens.shape == (ROWS, REPLY)
    for row in range(ROWS):
        count = reply.length[row]
        assert not np.any(reply.tokens[row, count:])
        assert not np.any(reply.log_probs[row, count:])
        is_stop = reply.tokens[row, :count] == 5
        if not ACTIVE[row]:
            assert count == 0
            assert not reply.is_cut[row]
        elif reply.is_cut[row]:
            assert count == REPLY
            assert not np.any(is_stop)
        else:
            assert is_stop[-1]
            assert not np.any(is_stop[:-1])
    assert len(set(reply.length[ACTIVE].tolist())) > 2
    assert not np.all(reply.is_cut[ACTIVE])


@pytest.mark.parametrize("chunk_tokens", [3, 32])
def test_chunks_do_not_change_replies(chunk_tokens):
    _, expected = _decoded()
    _, reply = _decoded(chunk_tokens)
    np.testing.assert_array_equal(reply.tokens, expected.tokens)
    np.testing.assert_array_equal(reply.length, expected.length)
    np.testing.assert_array_equal(reply.is_cut, expected.is_cut)
    np.testing.assert_allclose(reply.log_probs, expected.log_probs, atol=1e-6)


@pytest.mark.parametrize("compactions", [1, 5])
def test_compactions_do_not_change_replies(compactions):
    """Six rows, then three, then one."""
    _, expected = _decoded()
    _, reply = _decoded(chunk_tokens=1, compactions=compactions)
    np.testing.assert_array_equal(reply.tokens, expected.tokens)
    np.testing.assert_array_equal(reply.length, expected.length)
    np.testing.assert_array_equal(reply.is_cut, expected.is_cut)
    np.testing.assert_allclose(reply.log_probs, expected.log_probs, atol=1e-6)


def test_compactions_decode_smaller_batches(monkeypatch):
    batches, decode_step = [], decode.decode_step

    def watched(policy, params, context, positions, keys, **options):
        batches.append(len(positions))
        return decode_step(policy, params, context, positions, keys, **options)

    monkeypatch.setattr(decode, "decode_step", watched)
    _decoded.__wrapped__(chunk_tokens=2, compactions=3)
    assert batches == [6, 3, 1]


def test_a_lower_limit_cuts_the_same_replies():
    _, expected = _decoded()
    _, reply = _decoded(max_reply_tokens=3)
    np.testing.assert_array_equal(reply.length, np.minimum(expected.length, 3))
    is_kept = np.arange(3)[None, :] < np.asarray(reply.length)[:, None]
    np.testing.assert_array_equal(
        reply.tokens, np.where(is_kept, expected.tokens[:, :3], 0)
    )
    whole = (expected.length <= 3) & ~expected.is_cut
    np.testing.assert_array_equal(reply.is_cut, ACTIVE & ~whole)


@pytest.mark.parametrize("options", [{}, {"chunk_tokens": 1, "compactions": 5}])
def test_the_cache_holds_every_sampled_token(options):
    """Reading on gives what an uncached pass over the whole row gives."""
    context, reply = _decoded(**options)
    policy, params = _policy(), _params()
    more = np.full((ROWS, 1), 77, np.int32)
    starts = LENGTHS + np.asarray(reply.length)
    ones = jnp.ones(ROWS, jnp.int32)
    cached = jax.jit(functools.partial(read, policy))(
        params, context, TokenSpan(more, ones), jnp.asarray(starts)
    )
    rows = np.zeros((ROWS, SLOTS), np.int32)
    for row, start in enumerate(starts):
        rows[row, : LENGTHS[row]] = _tokens()[row, : LENGTHS[row]]
        rows[row, LENGTHS[row] : start] = reply.tokens[row, : reply.length[row]]
        rows[row, start] = 77
    positions = jnp.broadcast_to(jnp.arange(SLOTS)[None, :], rows.shape)
    hidden, _ = jax.jit(lambda t: policy.forward(params, t, positions, None))(rows)
    expected = np.asarray(hidden)[np.arange(ROWS), starts]
    np.testing.assert_allclose(cached.hidden, expected, atol=1e-5)


STARTS = np.asarray([0, 2, 5, 3, 1, 4], np.int32)


@functools.cache
def _read_on(chunk):
    """Prompts behind tokens of different numbers, read in chunks or (None) at once."""
    policy = _policy()
    lengths = jnp.where(jnp.arange(ROWS) == 4, 0, jnp.asarray(LENGTHS))
    how = Decoding(None, None, 0, 0, read_chunk_tokens=chunk)

    @jax.jit
    def read_on(params):
        before = Context(
            init_cache(policy.config, ROWS, 5 + WIDTH, policy.dtype),
            jnp.ones((ROWS, policy.config.hidden_size)),
        )
        first = TokenSpan(_tokens()[:, :5], jnp.maximum(STARTS, 1))
        before = read(policy, params, before, first, jnp.zeros(ROWS, jnp.int32))
        where = before, TokenSpan(_tokens(), lengths), jnp.asarray(STARTS)
        return decode.read_in_chunks(policy, params, *where, how)

    return read_on(_params()), STARTS + np.asarray(lengths)


@pytest.mark.parametrize("chunk", [1, 3, 4, 7, 20])
def test_prompts_that_are_read_in_chunks_are_the_same(chunk):
    """A row without a message keeps its own."""
    (whole, ends), (cut, _) = _read_on(None), _read_on(chunk)
    kept = np.arange(ROWS) != 4
    np.testing.assert_allclose(cut.hidden[kept], whole.hidden[kept], atol=1e-5)
    for one, other in zip(cut.cache.values, whole.cache.values, strict=True):
        for row in range(ROWS):
            parts = [x[row, :, : ends[row]] for x in (one, other)]
            np.testing.assert_allclose(*parts, atol=1e-5)
