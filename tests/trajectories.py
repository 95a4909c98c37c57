"""Made-up episodes with hostile padding, for tests of what learns from them."""

import jax.numpy as jnp
import numpy as np

from ragen_jax.rollout.transcript import empty_turns
from ragen_jax.types import Trajectory, Turns


def make_turns(reward, *, penalty=None, bonus=None, played=None) -> Turns:
    """Turns with these rewards [B, K]; where not played, values that must not count."""
    reward = np.asarray(reward, np.float32)
    penalty, bonus = (
        np.zeros_like(reward) if paid is None else np.asarray(paid)
        for paid in (penalty, bonus)
    )
    played = np.ones(reward.shape, bool) if played is None else np.asarray(played)
    return empty_turns(*reward.shape, num_actions=2).replace(
        played=jnp.asarray(played),
        reward=jnp.asarray(reward),
        penalty=jnp.asarray(penalty, jnp.float32),
        bonus=jnp.asarray(bonus, jnp.float32),
    )


def make_dialogues(
    num_rows: int, *, num_turns: int = 3, num_tokens: int = 20, seed: int = 0
) -> Trajectory:
    """Random episodes of one to `num_turns` turns: observation, reply, observation, ...

    Rewards are exact hundredths. What was not played and what is padding holds values
    that must not count.
    """
    random = np.random.default_rng(seed)
    turn_index = np.full((num_rows, num_tokens), -1)
    mask = np.zeros((num_rows, num_tokens), bool)
    lengths = np.zeros(num_rows, int)
    played = np.arange(num_turns) < random.integers(1, num_turns + 1, (num_rows, 1))
    for row, turn in zip(*np.nonzero(played), strict=True):
        reply = lengths[row] + random.integers(1, 3)
        end = reply + random.integers(1, 4)
        mask[row, reply:end] = True
        # The template ends a reply that was cut, outside the loss.
        end += random.random() < 0.4
        turn_index[row, lengths[row] : end] = turn
        lengths[row] = end
    rewards = random.integers(-100, 300, played.shape) / 100
    penalty = np.where(random.random(played.shape) < 0.3, -0.1, 0.0)
    bonus = random.integers(0, 5, played.shape) / 10
    filler = make_trajectory([0.0] * num_rows, num_tokens=num_tokens, seed=seed)
    return filler.replace(
        lengths=jnp.asarray(lengths, jnp.int32),
        loss_mask=jnp.asarray(mask),
        turn_index=jnp.asarray(turn_index, jnp.int32),
        turns=make_turns(
            np.where(played, rewards, np.nan),
            penalty=np.where(played, penalty, np.nan),
            bonus=np.where(played, bonus, np.nan),
            played=played,
        ),
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
