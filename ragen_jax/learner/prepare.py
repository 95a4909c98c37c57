"""From played episodes to what the loss is asked about, before any step.

In: the parameters that played, a trajectory and which of its rows count. Out: the
samples of the loss. The networks read the rows (`passes`), then the reward is shared
out (`credit`).
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from ragen_jax.algo.credit import Estimate
from ragen_jax.learner.credit import CreditAssignment, Readings
from ragen_jax.learner.objective import Samples, gather_samples
from ragen_jax.learner.passes import Passes, Weights
from ragen_jax.learner.rows import from_rows, row_tokens, rows_of, to_rows
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
