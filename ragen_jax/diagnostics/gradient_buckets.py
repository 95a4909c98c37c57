"""Gradients of groups with similar reward spread, bucket by bucket.

In: a train state and the batch before its update. Out: norms, losses and
signal-to-noise ratios of each part of the loss, by bucket, as `grad_norm/<bucket>/...`.
Groups whose rewards hardly differ have no task signal, but their entropy and KL
gradients are as large as any: the comparison by bucket shows whether an update learns
or only regularises (arXiv 2604.06268, section 4).
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int
from ml_collections import ConfigDict

from ragen_jax.algo.filters import reward_std
from ragen_jax.devices.exchange import to_host
from ragen_jax.devices.sharding import replicated
from ragen_jax.diagnostics.timing import timed
from ragen_jax.learner.batch import (
    game_rewards,
    gather_samples,
    named_arrays,
    replace_rewards,
    token_stats,
)
from ragen_jax.learner.learner import Learner
from ragen_jax.learner.loss import Samples
from ragen_jax.learner.passes import Passes
from ragen_jax.learner.state import TrainState
from ragen_jax.learner.update import Stages, trained_params
from ragen_jax.registry.numbers import Numbers
from ragen_jax.text.answers import AnswerParser
from ragen_jax.types import Params, Trajectory


@struct.dataclass
class BucketGradients:
    """Measurements by part `p` (see `parts_of`) and bucket `b`, all groups last.

    Attributes:
      norms: global norm of a part's gradient, before any clipping.
      losses: a part's loss, its coefficient included.
      squares: mean over a bucket's groups of the squared norm of their contributions;
        the mean of the contributions is the bucket's gradient.
      num_tokens: trained tokens.
    """

    norms: Float[Array, "p b"]
    losses: Float[Array, "p b"]
    squares: Float[Array, "p b"]
    num_tokens: Float[Array, " b"]


def parts_of(passes: Passes) -> dict[str, Bool[Array, ""] | bool]:
    """Parts of the loss, "task", "entropy" and "kl", and whether it has them."""
    objective = passes.objective
    return {
        "task": True,
        "entropy": objective.entropy_coeff > 0,
        "kl": objective.kl_penalty.placement == "loss",
    }


def make_bucket_gradients(
    make_stages: Callable[[Numbers], Stages],
    mesh: Mesh,
    *,
    num_groups: int,
    group_size: int,
    num_buckets: int,
) -> Callable[..., BucketGradients]:
    """Build the compiled `measure(frozen, numbers, state, trajectory, buckets)`.

    `buckets` is the bucket of every group, Int[G] from 0. Parts that the loss
    does not have cost nothing; their numbers are 0. Memory: three trees of the
    policy's size beside the state.

    Args:
      make_stages: of the learner, from `numbers`.
      mesh: rows are split over it.
    """

    def measure(frozen, numbers, state: TrainState, trajectory: Trajectory, buckets):
        stages = make_stages(numbers).shown(trajectory.images)
        passes, credit = stages.passes, stages.credit
        alone = _without_critic(passes)
        trajectory = replace_rewards(trajectory, credit, group_size=group_size)
        params = trained_params(state), frozen
        all_rows = jnp.ones(trajectory.lengths.shape, bool)
        before = token_stats(passes, params, trajectory, all_rows)
        estimate, _ = credit.assign(
            named_arrays(trajectory, group_size=group_size),
            **vars(before),
            loss_scale=jnp.float32(1),
            kl_penalty=passes.objective.kl_penalty,
            kl_coeff=state.kl_coeff,
        )
        samples = gather_samples(passes, trajectory, estimate, before)
        shares, num_tokens = _shares(passes, samples, buckets, num_buckets)
        of_group = functools.partial(
            _group_gradient, alone, state, frozen, samples, num_groups
        )

        def measure_part(factors):
            return _over_buckets(
                functools.partial(of_group, factors), alone, state, buckets, shares
            )

        def measure_if_set(part):
            is_set, factors = part
            zeros = (jnp.zeros(num_tokens.shape, jnp.float32),) * 3
            return jax.lax.cond(is_set, measure_part, lambda _: zeros, factors)

        # A part is the whole loss with the factors of the two others at 0.
        is_set = jnp.array(list(parts_of(passes).values()))
        measured = jax.lax.map(measure_if_set, (is_set, jnp.eye(3)))
        return BucketGradients(*measured, num_tokens)

    return jax.jit(measure, out_shardings=replicated(mesh))


def _without_critic(passes: Passes) -> Passes:
    policy_tables, _ = passes.table_shardings[0]
    return dataclasses.replace(
        passes,
        critic=None,
        trained_shardings=(passes.trained_shardings[0], None),
        table_shardings=((policy_tables, None), passes.table_shardings[1]),
    )


def _shares(
    passes: Passes, samples: Samples, buckets: Int[Array, " G"], num_buckets: int
) -> tuple[Float[Array, "b G"], Float[Array, " b"]]:
    """Each group's factor in each bucket's gradient, and the buckets' tokens."""
    num_groups = buckets.shape[0]
    by_group = samples.mask.reshape(num_groups, -1, samples.mask.shape[1])
    # A group's gradient is computed as if it were a minibatch; in the bucket's, its
    # tokens weigh less. Weights are proportional, so one factor per group corrects it.
    alone = jax.vmap(passes.objective.token_weights)(by_group).sum((1, 2))

    def of_bucket(b):
        is_in = (buckets == b) | (b == num_buckets)
        mask = (by_group & is_in[:, None, None]).reshape(samples.mask.shape)
        within = (
            passes.objective.token_weights(mask).reshape(by_group.shape).sum((1, 2))
        )
        share = jnp.where(alone > 0, within / jnp.where(alone > 0, alone, 1.0), 0.0)
        return share, mask.sum()

    shares, counts = jax.lax.map(of_bucket, jnp.arange(num_buckets + 1))
    return shares, counts.astype(jnp.float32)


def _group_gradient(
    passes: Passes,
    state: TrainState,
    frozen: Params | None,
    samples: Samples,
    num_groups: int,
    factors: Float[Array, "3"],
    group: Int[Array, ""],
) -> tuple[Params, Float[Array, ""]]:
    task, entropy, kl = factors
    objective = passes.objective
    passes = dataclasses.replace(
        passes,
        objective=dataclasses.replace(
            objective, entropy_coeff=entropy * objective.entropy_coeff
        ),
    )
    num_rows = samples.mask.shape[0]
    size = num_rows // num_groups
    rows = group * size + jnp.arange(size)
    if passes.prompts is None:
        is_empty = ~jnp.any(samples.mask[rows], axis=1)
        # Rows without trained tokens (turns that were not played) are skipped.
        order = jnp.argsort(is_empty, stable=True)
        rows = jnp.where(is_empty[order], num_rows, rows[order])
    rows = jnp.pad(rows, (0, -size % passes.microbatch_rows), constant_values=num_rows)
    (grads, _), sums = passes.gradient(
        (state.policy.params, None),
        frozen,
        samples.replace(advantages=task * samples.advantages),
        rows,
        kl * state.kl_coeff,
    )
    return grads, sums.loss


def _over_buckets(
    of_group: Callable, passes: Passes, state: TrainState, buckets, shares
) -> tuple[Float[Array, " b"], Float[Array, " b"], Float[Array, " b"]]:
    """Norms, losses and mean squares of one part, of each bucket and of all groups."""
    # Group by group in the order of buckets, so that two sums of the parameters' size
    # are enough: that of the current bucket and that of all groups.
    order = jnp.argsort(buckets, stable=True)
    num_buckets = shares.shape[0] - 1
    starts = jnp.searchsorted(buckets[order], jnp.arange(num_buckets + 1))
    zero = jnp.float32(0)

    def zeros():
        tree = jax.tree.map(jnp.zeros_like, state.policy.params)
        return jax.lax.with_sharding_constraint(tree, passes.trained_shardings[0])

    def add(total, grads, share, loss):
        tree, total_loss, squares = total
        tree = jax.tree.map(lambda x, y: x + share * y, tree, grads)
        squares += (share * optax.tree.norm(grads)) ** 2
        return tree, total_loss + share * loss, squares

    def of_bucket(everything, b):
        def step(i, carry):
            everything, bucket = carry
            group = order[i]
            grads, loss = of_group(group)
            bucket = add(bucket, grads, shares[b, group], loss)
            return add(everything, grads, shares[-1, group], loss), bucket

        start, end = starts[b], starts[b + 1]
        carry = everything, (zeros(), zero, zero)
        everything, bucket = jax.lax.fori_loop(start, end, step, carry)
        return everything, _finish(bucket, (end - start).astype(jnp.float32))

    everything, by_bucket = jax.lax.scan(
        of_bucket, (zeros(), zero, zero), jnp.arange(num_buckets)
    )
    last = _finish(everything, buckets.shape[0])
    return jax.tree.map(lambda x, y: jnp.append(x, y), by_bucket, last)


def _finish(total, num_groups) -> tuple:
    """Norm, loss and mean square of the contributions `n * share * gradient`."""
    tree, loss, squares = total
    return optax.tree.norm(tree), loss, squares * num_groups


# The bucket of all groups, after the others.
ALL = "all"
# Of a standard deviation in float32, relative.
_ROUNDING = 1e-5


def quantile_buckets(
    stds: Float[np.ndarray, " G"], num_buckets: int
) -> Int[np.ndarray, " G"]:
    """Buckets of equally many groups by spread, the remainder in the last one.

    If there are fewer groups than buckets, each group is a bucket.
    """
    rank = np.empty(len(stds), np.int32)
    rank[np.argsort(stds, kind="stable")] = np.arange(len(stds))
    count = min(num_buckets, len(stds))
    return np.minimum(rank // (len(stds) // count), count - 1)


def fixed_buckets(
    stds: Float[np.ndarray, " G"], num_buckets: int
) -> Int[np.ndarray, " G"]:
    """Buckets of spreads from 0 to 1, 1 to 2, ...; the last one has no upper bound.

    A spread that is less than a whole number by its rounding is that number.
    """
    lower = np.floor(stds * (1 + _ROUNDING))
    return np.minimum(lower, num_buckets - 1).astype(np.int32)


def signal_to_noise(norm: float, squares: float, num_groups: int) -> float | None:
    """Agreement of the groups' gradients: an unbiased |G|^2 over their variance.

    With contributions h_i whose mean is the bucket's gradient, and their variance
    s^2 = sum |h_i - mean|^2 / (n - 1), it is |mean|^2 / s^2 - 1 / n: 0 where the groups
    pull in unrelated directions, below it by chance alone. Its inverse is the gradient
    noise scale of arXiv 1812.06162 (appendix A), counted in groups.

    Args:
      norm: of the mean.
      squares: mean of |h_i|^2.
      num_groups: `n`.

    Returns:
      None with fewer than two groups; 0 where there is neither signal nor noise.
    """
    if num_groups < 2:
        return None
    variance = (squares - norm**2) * num_groups / (num_groups - 1)
    if variance <= 0:
        return 0.0
    return norm**2 / variance - 1 / num_groups


def bucket_metrics(
    stds: Float[np.ndarray, " G"],
    buckets: Int[np.ndarray, " G"],
    group_size: int,
    *,
    num_tokens: Float[np.ndarray, " b"],
    norms: Mapping[str, Float[np.ndarray, " b"]],
    losses: Mapping[str, Float[np.ndarray, " b"]],
    squares: Float[np.ndarray, " b"],
) -> dict[str, float]:
    """Metrics named `<bucket>/...` with buckets `bucket_1` ... and `all`.

    Args:
      stds, buckets: of the groups; buckets from 0, empty ones are left out.
      group_size: rows per group.
      num_tokens: trained tokens of each bucket, `all` last, as everything below.
      norms, losses: of each part of the loss ("task", "entropy", "kl").
      squares: mean of the groups' squared contributions to the task's gradient.
    """
    metrics = {}
    for b in range(len(num_tokens)):
        is_all = b == len(num_tokens) - 1
        spreads = stds if is_all else stds[buckets == b]
        if len(spreads) == 0:
            continue
        prefix = f"{ALL}/" if is_all else f"bucket_{b + 1}/"
        rows = len(spreads) * group_size
        values = {
            "sample_count": rows,
            "sample_pct": 100 * len(spreads) / len(stds),
            "reward_std_mean": spreads.mean(),
            "reward_std_min": spreads.min(),
            "reward_std_max": spreads.max(),
            "snr": signal_to_noise(norms["task"][b], squares[b], len(spreads)),
            "loss/total": sum(loss[b] for loss in losses.values()),
        }
        for part, norm in norms.items():
            name = "policy" if part == "task" else part
            values |= {
                part: norm[b],
                f"per_sample/{part}": norm[b] / rows,
                f"per_token/{part}": norm[b] / max(num_tokens[b], 1),
                f"loss/{name}": losses[part][b],
            }
        metrics |= {
            prefix + name: float(value)
            for name, value in values.items()
            if value is not None
        }
    return metrics


# (standard deviations, number of buckets) -> bucket of each group.
BUCKET_MODES: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "quantile": quantile_buckets,
    "fixed": fixed_buckets,
}


def make_gradients(
    config: ConfigDict, learner: Learner, frozen: Params | None, parser: AnswerParser
) -> Callable:
    """The measurement as a `schedule.Measure`, before the filter."""
    del parser  # gradients read no text
    size = config.rollout.group_size
    num_buckets = config.diagnostics.gradient_buckets
    bucket_of = BUCKET_MODES[config.diagnostics.gradient_bucket_mode]
    mesh = learner.stages.passes.mesh

    @jax.jit
    def spread(trajectory):
        credit = learner.stages.credit
        trajectory = replace_rewards(trajectory, credit, group_size=size)
        counted = learner.stages.filter_config.counted(trajectory.loss_mask)
        return reward_std(game_rewards(trajectory), counted, group_size=size)

    gradients = make_bucket_gradients(
        learner.make_stages,
        mesh,
        num_groups=config.rollout.num_groups,
        group_size=size,
        num_buckets=num_buckets,
    )

    def measure(numbers, key, state, batch):
        del key
        timing, passes = {}, learner.make_stages(numbers).passes
        is_set = list(parts_of(passes).items())
        with timed(timing, "gradient_buckets"):
            stds = np.asarray(to_host(spread(batch)))
            buckets = bucket_of(stds, num_buckets)
            learner_only = state.replace(acting_snapshot=None)
            measured = jax.device_get(
                gradients(frozen, numbers, learner_only, batch, buckets)
            )
        parts = [(i, part) for i, (part, is_part) in enumerate(is_set) if is_part]
        metrics = bucket_metrics(
            stds,
            buckets,
            size,
            num_tokens=measured.num_tokens,
            norms={part: measured.norms[i] for i, part in parts},
            losses={part: measured.losses[i] for i, part in parts},
            squares=measured.squares[0],
        )
        return {f"grad_norm/{name}": x for name, x in metrics.items()} | timing

    return measure
