"""Functions as a user would bring them, named `tests.launch.users_functions:NAME`."""

import jax.numpy as jnp

from ragen_jax.algo.advantages import grpo
from ragen_jax.algo.segments import Estimate


def scaled_grpo(trajectory, rewards, *, group_size, strength=1.0):
    """GRPO with an option."""
    estimate = grpo(trajectory, rewards, group_size=group_size)
    return estimate.replace(advantages=strength * estimate.advantages)


def first_groups(scores, *, num_groups, group_size, share: float):
    """Keeps the first groups; its option has no default."""
    kept = jnp.arange(num_groups) < round(share * num_groups)
    return jnp.broadcast_to(kept[:, None], (num_groups, group_size))


def brevity(written, *, price=0.01):
    """Costs a little per token."""
    return -price * written.reply.length.astype(jnp.float32)


def shaped(trajectory, *, shaping=0.5):
    """Pays for moves as well."""
    moves = trajectory.turns.num_effective.astype(jnp.float32)
    return trajectory.turns.reward + shaping * moves


def mean_actions_left(trajectory):
    """A metric."""
    return {
        "mean_actions_left": jnp.mean(trajectory.turns.actions_left, dtype="float32")
    }


def not_finite(trajectory, rewards):
    """Divides by zero where nothing is paid."""
    total = jnp.sum(rewards)
    return grpo(trajectory, rewards / total, group_size=4)


def of_another_shape(trajectory, rewards):
    """One number per row."""
    return Estimate(advantages=jnp.sum(rewards, axis=1))


def of_another_type(trajectory, rewards):
    """The numbers alone."""
    return rewards


def has_an_array(trajectory, rewards, *, weights=jnp.ones(2)):  # noqa: B008
    """Its option's default is nothing that JSON holds."""
    return grpo(trajectory, weights[0] * rewards, group_size=4)


def reads_entropies(trajectory, rewards, *, entropies):
    """Asks for data that an estimator does not get."""
    return entropies


def asks_for_more(trajectory, rewards):
    """Reads a field that there is not."""
    return trajectory.winnings


def takes_one(trajectory):
    """Lacks the rewards."""
    return trajectory
