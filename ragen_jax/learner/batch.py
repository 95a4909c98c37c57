"""The batch of an update: kept rows first, laid out as the networks read them.

In: a trajectory and the rows a filter kept. Out: `Samples`, one row per episode or per
context window, and the slices of them that a minibatch takes.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Shaped

from ragen_jax.algo.credit import CreditAssignment
from ragen_jax.algo.segments import Estimate, Readings, from_windows, to_windows
from ragen_jax.learner.loss import Samples
from ragen_jax.learner.passes import Passes, Weights
from ragen_jax.types import Params, Trajectory


@struct.dataclass
class Prepared:
    """What is known before the first step.

    Attributes:
      samples: in the rows that networks read.
      mask: tokens of the dialogue that are trained on.
      rows: which of those rows count.
      estimate, readings: per token of the dialogue.
      reward_kl: mean KL per token that the reward was charged for.
    """

    samples: Samples
    mask: Bool[Array, "B T"]
    rows: Bool[Array, " R"]
    estimate: Estimate
    readings: Readings
    reward_kl: Float[Array, ""]


def prepare(
    passes: Passes,
    credit: CreditAssignment,
    networks: tuple[Weights, Params | None],
    trajectory: Trajectory,
    kept: Bool[Array, " B"],
    *,
    group_size: int,
    loss_scale: Float[Array, ""],
    kl_coeff: Float[Array, ""],
) -> Prepared:
    """Read the kept rows and assign credit to their tokens.

    Args:
      passes, credit: the learner's.
      networks: weights of the networks that played, and frozen parameters.
      trajectory: all rows.
      kept: those that count.
      group_size: rows per group.
      loss_scale: factor on the advantages.
      kl_coeff: weight of the KL penalty.
    """
    weights, frozen = networks
    mask = trajectory.loss_mask & kept[:, None]
    trajectory = trajectory.replace(loss_mask=mask)
    sampled = jnp.where(mask, trajectory.sample_log_probs, 0.0)
    sampled, row_mask = to_rows(sampled, trajectory), to_rows(mask, trajectory)
    rows, tokens = rows_of(kept, trajectory), row_tokens(trajectory)
    readings = passes.read(weights, frozen, tokens, row_mask, sampled, rows)
    by_token = jax.tree.map(lambda y: from_rows(y, trajectory), readings)
    estimate, reward_kl = credit.assign(
        trajectory,
        by_token,
        group_size=group_size,
        loss_scale=loss_scale,
        kl_penalty=passes.objective.kl_penalty,
        kl_coeff=kl_coeff,
    )
    return Prepared(
        samples=gather_samples(trajectory, estimate, readings),
        mask=mask,
        rows=rows,
        estimate=estimate,
        readings=by_token,
        reward_kl=reward_kl,
    )


def read_entropies(
    passes: Passes, networks: tuple[Weights, Params | None], trajectory: Trajectory
) -> Float[Array, "B T"]:
    """The policy's entropy at every token that may be trained on, 0 elsewhere.

    Args:
      passes, networks, trajectory: see `prepare`.
    """
    tokens, mask = row_tokens(trajectory), to_rows(trajectory.loss_mask, trajectory)
    return from_rows(passes.entropies(*networks, tokens, mask), trajectory)


def row_tokens(trajectory: Trajectory) -> Int[Array, "R L"]:
    """What to read; padding, which may be anything, becomes 0."""
    of = trajectory if trajectory.windows is None else trajectory.windows
    tokens = of.tokens.reshape(-1, of.tokens.shape[-1])
    order = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    return jnp.where(order[None] < of.lengths.reshape(-1, 1), tokens, 0)


def rows_of(kept: Bool[Array, " B"], trajectory: Trajectory) -> Bool[Array, " R"]:
    """The rows of some episodes; turns that were not played have none."""
    if trajectory.windows is None:
        return kept
    return (kept[:, None] & trajectory.turns.played).reshape(-1)


def to_rows(x: Shaped[Array, "B T"], trajectory: Trajectory) -> Shaped[Array, "R L"]:
    """A number per token of the dialogue, for the tokens of the rows."""
    if trajectory.windows is None:
        return x
    y = to_windows(x, trajectory)
    return y.reshape(-1, y.shape[-1])


def from_rows(y: Shaped[Array, "R L"], trajectory: Trajectory) -> Shaped[Array, "B T"]:
    """The way back; 0 off the trained tokens where rows are windows."""
    if trajectory.windows is None:
        return y
    return from_windows(y.reshape(trajectory.windows.tokens.shape), trajectory)


def gather_samples(
    trajectory: Trajectory, estimate: Estimate, readings: Readings
) -> Samples:
    """The loss's view of a trajectory, in the rows that networks read.

    Args:
      trajectory: without its dropped rows.
      estimate: per token of the dialogue.
      readings: per token of the rows.
    """
    mask, sampled = trajectory.loss_mask, trajectory.sample_log_probs
    by_token = (
        mask,
        estimate.advantages,
        estimate.returns,
        jnp.where(mask, sampled, 0.0),
    )
    mask, advantages, returns, sampled = jax.tree.map(
        lambda x: to_rows(x, trajectory), by_token
    )
    return Samples(
        tokens=row_tokens(trajectory),
        mask=mask,
        advantages=advantages,
        returns=returns,
        sample_log_probs=sampled,
        readings=readings,
    )
