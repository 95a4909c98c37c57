"""One step of fine-tuning: its gradient against one row and one token at a time."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.models.families import new_config
from ragen_jax.models.policy import build_policy
from ragen_jax.sft import step
from ragen_jax.sft.data import Batch
from tests.sft import tiny


@pytest.fixture(scope="module")
def model():
    config = new_config(
        vocab_size=32,
        head_dim=8,
        tie_word_embeddings=True,
        initializer_range=0.3,
        **tiny.SHAPE,
    )
    policy = build_policy(config)
    return policy, policy.init(jax.random.key(0))


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 21, 8)
    is_text = np.arange(20)[None, :] < lengths[:, None]
    return Batch(
        tokens=jnp.asarray(rng.integers(0, 32, (8, 20)), jnp.int32),
        lengths=jnp.asarray(lengths, jnp.int32),
        loss_mask=jnp.asarray(is_text & (rng.random((8, 20)) < 0.5)),
    )


def plain_loss(policy, params, batch):
    """Mean over masked tokens, one row and one token at a time."""
    losses = []
    for tokens, mask in zip(batch.tokens, np.asarray(batch.loss_mask), strict=True):
        hidden, _ = policy.forward(params, tokens[None], jnp.arange(20)[None], None)
        log_probs = jax.nn.log_softmax(policy.logits(params, hidden[0]))
        losses += [-log_probs[t - 1, tokens[t]] for t in range(1, len(mask)) if mask[t]]
    return jnp.mean(jnp.stack(losses))


def gradient(policy, params, batch, *, episodes, chunk_tokens):
    return step.batch_gradient(
        policy,
        lambda params: params,
        params,
        batch,
        microbatch_episodes=episodes,
        logprob_chunk_tokens=chunk_tokens,
    )


@pytest.fixture(scope="module")
def plain(model, batch):
    policy, params = model
    return jax.jit(jax.value_and_grad(lambda p: plain_loss(policy, p, batch)))(params)


@pytest.mark.parametrize("chunk_tokens", [None, 1, 7, 1000])
def test_sorting_and_cutting_change_no_gradient(model, batch, plain, chunk_tokens):
    policy, params = model
    computed, metrics = jax.jit(
        lambda params: gradient(
            policy, params, batch, episodes=2, chunk_tokens=chunk_tokens
        )
    )(params)
    loss, expected = plain
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    assert int(metrics["tokens"]) == int(batch.loss_mask[:, 1:].sum())
    chex.assert_trees_all_close(computed, expected, atol=1e-6)


def test_messages_of_the_environment_are_not_learned(model, batch):
    policy, params = model
    silent = batch.replace(loss_mask=jnp.zeros_like(batch.loss_mask))
    computed, metrics = jax.jit(
        lambda params: gradient(policy, params, silent, episodes=8, chunk_tokens=None)
    )(params)
    assert float(metrics["loss"]) == 0
    assert all(not leaf.any() for leaf in jax.tree.leaves(computed))
