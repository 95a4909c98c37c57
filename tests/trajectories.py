"""Made-up episodes with hostile padding, for tests of what learns from them."""

import jax.numpy as jnp
import numpy as np

from ragen_jax.types import Trajectory, Turns


def make_turns(reward, *, penalty=None, played=None) -> Turns:
    """Turns with these rewards [B, K]; where not played, values that must not count."""
    reward = np.asarray(reward, np.float32)
    penalty = np.zeros_like(reward) if penalty is None else np.asarray(penalty)
    played = np.ones(reward.shape, bool) if played is None else np.asarray(played)
    zeros = jnp.zeros(reward.shape, jnp.int32)
    return Turns(
        played=jnp.asarray(played),
        reward=jnp.asarray(reward),
        penalty=jnp.asarray(penalty, jnp.float32),
        reply_start=zeros,
        reply_length=zeros,
        reply_is_cut=zeros > 0,
        has_format=zeros > 0,
        num_listed=zeros,
        num_valid=zeros,
        num_executed=zeros,
        num_effective=zeros,
        actions=jnp.full((*reward.shape, 2), -1, jnp.int32),
        actions_left=zeros,
    )


def make_trajectory(
    rewards, *, num_tokens: int = 12, vocab_size: int = 13, seed: int = 0
) -> Trajectory:
    """Random episodes of random lengths, one turn each, with these rewards [B].

    About half of each row's tokens, never its first, are trained on.
    """
    random = np.random.default_rng(seed)
    num_rows = len(rewards)
    shape = num_rows, num_tokens
    lengths = random.integers(num_tokens // 2, num_tokens + 1, num_rows)
    order = np.arange(num_tokens)[None]
    is_token = order < lengths[:, None]
    mask = is_token & (random.random(shape) < 0.5) & (order > 0)
    mask[:, 1] = True
    tokens = random.integers(0, vocab_size, shape)
    log_probs = -np.log(vocab_size) + 0.3 * random.normal(size=shape)
    return Trajectory(
        tokens=jnp.asarray(tokens, jnp.int32),
        lengths=jnp.asarray(lengths, jnp.int32),
        loss_mask=jnp.asarray(mask),
        turn_index=jnp.asarray(np.where(is_token, 0, -1), jnp.int32),
        sample_log_probs=jnp.asarray(np.where(mask, log_probs, 0.0), jnp.float32),
        turns=make_turns(np.asarray(rewards)[:, None]),
        terminated=jnp.ones(num_rows, bool),
        truncated=jnp.zeros(num_rows, bool),
        success=jnp.zeros(num_rows, bool),
        initial_state=jnp.zeros(num_rows),
    )
