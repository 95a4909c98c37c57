"""Functions as a user would bring them, named `tests.launch.users_functions:NAME`."""

import jax.numpy as jnp

from ragen_jax.algo.advantages import grpo, reinforce
from ragen_jax.algo.segments import Estimate


def scaled_grpo(rewards, mask, *, group_size, strength=1.0):
    estimate = grpo(rewards, mask, group_size=group_size)
    return estimate.replace(advantages=strength * estimate.advantages)


def of_episodes(trajectory, rewards, *, group_size, strength=1.0):
    """The same from the whole record of the episodes."""
    return scaled_grpo(
        rewards, trajectory.loss_mask, group_size=group_size, strength=strength
    )


def calls_as_before(trajectory, rewards, *, group_size):
    """Hands a trajectory to a function that takes arrays."""
    return grpo(trajectory, rewards, group_size=group_size)


def has_no_type(rewards, mask, *, group_size, cap=None):
    return grpo(rewards, mask, group_size=group_size)


def discounted(rewards, mask, *, gamma, group_size):
    """Reads a number that the library's estimators get as data."""
    if gamma == 1:
        return grpo(rewards, mask, group_size=group_size)
    return Estimate(reinforce(rewards, mask, gamma=gamma).advantages)


def first_groups(scores, *, num_groups, group_size, share: float):
    kept = jnp.arange(num_groups) < round(share * num_groups)
    return jnp.broadcast_to(kept[:, None], (num_groups, group_size))


def brevity(written, *, price=0.01):
    """Costs a little per token."""
    return -price * written.reply.length.astype(jnp.float32)


def shaped(trajectory, *, shaping=0.5):
    moves = trajectory.turns.num_effective.astype(jnp.float32)
    return trajectory.turns.reward + shaping * moves


def mean_actions_left(trajectory):
    return {
        "mean_actions_left": jnp.mean(trajectory.turns.actions_left, dtype="float32")
    }


def not_finite(rewards, mask):
    total = jnp.sum(rewards)
    return grpo(rewards / total, mask, group_size=4)


def of_another_shape(rewards, mask):
    return Estimate(advantages=jnp.sum(rewards, axis=1))


def of_another_type(rewards, mask):
    """The numbers alone."""
    return rewards


def has_an_array(rewards, mask, *, weights=jnp.ones(2)):  # noqa: B008
    """Its option's default is nothing that JSON holds."""
    return grpo(weights[0] * rewards, mask, group_size=4)


def reads_entropies(rewards, mask, *, entropies):
    return entropies


def asks_for_more(trajectory, rewards):
    """Reads a field that there is not."""
    return trajectory.winnings


def names_its_own(prizes, mask):
    """Asks for data by a name that there is not."""
    return grpo(prizes, mask, group_size=4)


def gives_data_a_default(rewards, mask, *, num_turns=2):
    return rewards * num_turns
