"""First messages: read once a group where it shares them, and their common part once.

Against every row reading its own in one pass.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.models.policy import build_policy
from ragen_jax.rollout.collect import model_responder
from ragen_jax.rollout.decode import Decoding
from ragen_jax.types import TokenSpan
from tests.rollout import players

NUM_ROWS, GROUP_SIZE, WIDTH, NUM_COMMON, SLOTS = 8, 4, 12, 7, 16
LENGTHS = np.array([8, 9, 12, 10, 11, 8, 12, 9], np.int32)


def messages(shares_levels):
    tokens = np.random.default_rng(0).integers(1, players.VOCAB, (NUM_ROWS, WIDTH))
    tokens[:, :NUM_COMMON], lengths = tokens[0, :NUM_COMMON], LENGTHS
    if shares_levels:
        tokens, lengths = (
            np.repeat(x[::GROUP_SIZE], GROUP_SIZE, axis=0) for x in (tokens, lengths)
        )
    tokens = np.where(np.arange(WIDTH) < lengths[:, None], tokens, 0)
    return TokenSpan(jnp.asarray(tokens, jnp.int32), jnp.asarray(lengths))


@functools.cache
def network():
    """A policy, its parameters, and a list that grows by a width at every pass."""
    policy, widths = build_policy(players.MODEL), []

    def forward(params, tokens, positions, cache, sight=None):
        jax.debug.callback(lambda: widths.append(tokens.shape))
        return policy.forward(params, tokens, positions, cache)

    counting = dataclasses.replace(policy, forward=forward)
    return counting, policy.init(jax.random.key(0)), widths


def read(span, chunk=None, **how):
    """What is known after the messages, and the shapes of the passes."""
    policy, params, widths = network()
    decoding = Decoding(None, None, 0, 0, read_chunk_tokens=chunk)

    @jax.jit
    def observe(params, span, shares_levels):
        if "group_size" in how:
            how["shares_levels"] = shares_levels
        player = model_responder(policy, params, decoding, **how)
        zeros, active = jnp.zeros(NUM_ROWS, jnp.int32), jnp.ones(NUM_ROWS, bool)
        return player.observe(player.init(NUM_ROWS), span, zeros, active, SLOTS)

    widths.clear()
    shares = how.pop("shares_levels", False)
    context = jax.block_until_ready(observe(params, span, jnp.bool_(shares)))
    jax.effects_barrier()
    filled = np.arange(SLOTS) < np.asarray(span.length)[:, None]
    values = [
        np.asarray(x)[filled.nonzero()[0], :, filled.nonzero()[1]]
        for x in context.cache.values
    ]
    return [np.asarray(context.hidden), *values], list(widths)


@pytest.mark.parametrize("chunk", [None, 4])
@pytest.mark.parametrize("shares_levels", [True, False])
def test_every_way_to_read_knows_the_same(shares_levels, chunk):
    span = messages(shares_levels)
    expected, passes = read(span)
    assert passes == [(NUM_ROWS, WIDTH)]
    how = {"group_size": GROUP_SIZE, "shares_levels": shares_levels}
    for num_common in (0, NUM_COMMON):
        found, _ = read(span, chunk, num_common=num_common, **how)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=2e-5)


def test_a_shared_message_is_read_once_and_a_common_beginning_once():
    how = {"group_size": GROUP_SIZE, "num_common": NUM_COMMON}
    num_groups = NUM_ROWS // GROUP_SIZE
    _, passes = read(messages(True), shares_levels=True, **how)
    # The beginning and the rest; the rest is one pass for the following rows.
    assert passes == [(num_groups, WIDTH // 2)] * 2
    _, passes = read(messages(False), shares_levels=False, **how)
    assert passes == [(num_groups, WIDTH // 2)] * (2 + GROUP_SIZE - 1)


def test_all_messages_of_a_game_begin_alike_and_go_on():
    env, dialogue = players.game("sokoban", style="full")
    opening = dialogue.opening
    assert opening.num_common > 20
    keys = jax.random.split(jax.random.key(0), 5)
    spans = players_messages(env, opening, keys)
    tokens = np.asarray(spans.tokens)
    assert (tokens[:, : opening.num_common] == tokens[0, : opening.num_common]).all()
    assert (np.asarray(spans.length) > opening.num_common).all()


def players_messages(env, opening, keys):
    def message(key):
        state = env.reset_env(key, env.default_params)[1]
        fields = env.text_fields(state, env.default_params)
        missing = {name: jnp.int32(1) for name in opening.fields if name not in fields}
        return opening.tokens(fields | missing)

    return jax.vmap(message)(keys)
