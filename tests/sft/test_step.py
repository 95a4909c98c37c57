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


def plain_loss(policy, params, batch, prompt_weight=0.0):
    """Weighted mean over tokens, one row and one token at a time."""
    losses, weights = [], []
    masks, lengths = np.asarray(batch.loss_mask), np.asarray(batch.lengths)
    rows = zip(batch.tokens, masks, lengths, strict=True)
    for tokens, mask, length in rows:
        hidden, _ = policy.forward(params, tokens[None], jnp.arange(20)[None], None)
        log_probs = jax.nn.log_softmax(policy.logits(params, hidden[0]))
        for t in range(1, length):
            losses.append(-log_probs[t - 1, tokens[t]])
            weights.append(1.0 if mask[t] else prompt_weight)
    return jnp.average(jnp.stack(losses), weights=jnp.array(weights))


def gradient(
    policy, params, batch, *, episodes, chunk_tokens, prompt_weight=0.0, num_widths=5
):
    return step.batch_gradient(
        policy,
        lambda params: params,
        params,
        batch,
        microbatch_episodes=episodes,
        num_widths=num_widths,
        logprob_chunk_tokens=chunk_tokens,
        prompt_loss_weight=prompt_weight,
    )


@pytest.fixture(scope="module")
def plain(model, batch):
    policy, params = model
    return jax.jit(jax.value_and_grad(lambda p: plain_loss(policy, p, batch)))(params)


@pytest.mark.parametrize(
    ("chunk_tokens", "num_widths"), [(None, 5), (1, 5), (7, 5), (1000, 5), (None, 1)]
)
def test_sorting_and_cutting_change_no_gradient(
    model, batch, plain, chunk_tokens, num_widths
):
    policy, params = model
    how = {"chunk_tokens": chunk_tokens, "num_widths": num_widths}
    computed, metrics = jax.jit(
        lambda params: gradient(policy, params, batch, episodes=2, **how)
    )(params)
    loss, expected = plain
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    assert int(metrics["tokens"]) == int(batch.loss_mask[:, 1:].sum())
    chex.assert_trees_all_close(computed, expected, atol=1e-6)


@pytest.mark.parametrize("chunk_tokens", [None, 7])
def test_messages_are_learned_with_their_weight(model, batch, plain, chunk_tokens):
    policy, params = model
    computed, metrics = jax.jit(
        lambda params: gradient(
            policy,
            params,
            batch,
            episodes=4,
            chunk_tokens=chunk_tokens,
            prompt_weight=0.25,
        )
    )(params)
    weighted = jax.grad(lambda p: plain_loss(policy, p, batch, 0.25))
    chex.assert_trees_all_close(computed, jax.jit(weighted)(params), atol=1e-6)
    # The reported loss is still that of replies.
    np.testing.assert_allclose(metrics["loss"], plain[0], rtol=1e-5)


def test_messages_of_the_environment_are_not_learned(model, batch):
    policy, params = model
    silent = batch.replace(loss_mask=jnp.zeros_like(batch.loss_mask))
    computed, metrics = jax.jit(
        lambda params: gradient(policy, params, silent, episodes=8, chunk_tokens=None)
    )(params)
    assert float(metrics["loss"]) == 0
    assert all(not leaf.any() for leaf in jax.tree.leaves(computed))
