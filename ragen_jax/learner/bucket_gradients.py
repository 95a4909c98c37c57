"""Gradients of the parts of the loss, bucket by bucket of groups; nothing is learned.

In: the train state that played, its batch, and the bucket of every group. Out: norms
and losses. The loss is the update's own (`passes`, `credit`, `objective`), of all
groups, before any filter and any step; a bucket's is what the loss of a minibatch with
exactly its rows would be, normalised by its own tokens however few they are.

Every group is read once per part. Its gradient, normalised by its own tokens, goes into
its bucket and into `all` with the share that it has of their token weights: gradients
of sums are sums, so that this is exact for every entry of `AGGREGATIONS`.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Float, Int

from ragen_jax.learner.credit import CreditAssignment
from ragen_jax.learner.objective import Samples
from ragen_jax.learner.passes import Passes
from ragen_jax.learner.prepare import prepare
from ragen_jax.learner.sharding import replicated
from ragen_jax.learner.state import TrainState
from ragen_jax.learner.update import weights
from ragen_jax.types import Params, Trajectory


@struct.dataclass
class BucketGradients:
    """Axes: `p` parts, in the order of `parts_of`; `b` buckets, all groups last.

    Attributes:
      norms: global norm of a part's gradient, before any clipping.
      losses: of the part, its coefficient included.
      squares: mean over a bucket's groups of their squared contributions, whose mean is
        the bucket's gradient.
      num_tokens: trained tokens.
    """

    norms: Float[Array, "p b"]
    losses: Float[Array, "p b"]
    squares: Float[Array, "p b"]
    num_tokens: Float[Array, " b"]


def parts_of(passes: Passes) -> tuple[str, ...]:
    """Parts that the loss has: "task", and "entropy" and "kl" where they weigh."""
    objective = passes.objective
    is_part = {
        "task": True,
        "entropy": objective.entropy_coeff > 0,
        "kl": objective.kl_penalty.placement == "loss",
    }
    return tuple(name for name, there in is_part.items() if there)


def make_bucket_gradients(
    passes: Passes,
    credit: CreditAssignment,
    *,
    num_groups: int,
    group_size: int,
    num_buckets: int,
) -> Callable[..., BucketGradients]:
    """Build the compiled `measure(frozen, state, trajectory, buckets)`.

    `buckets` is the bucket of every group, Int[G] from 0. Memory: three trees of the
    policy's size beside the state.
    """
    parts = parts_of(passes)
    # Which of task, entropy and KL each part is, as factors.
    factors = jnp.array(
        [[part == name for name in ("task", "entropy", "kl")] for part in parts],
        jnp.float32,
    )
    alone = dataclasses.replace(
        passes,
        critic=None,
        weight_shardings=(passes.weight_shardings[0], None),
        table_shardings=(
            (passes.table_shardings[0][0], None),
            passes.table_shardings[1],
        ),
    )

    def measure(frozen, state: TrainState, trajectory: Trajectory, buckets):
        networks = weights(state), frozen
        samples = prepare(
            passes,
            credit,
            networks,
            trajectory,
            jnp.ones(trajectory.lengths.shape, bool),
            group_size=group_size,
            loss_scale=jnp.float32(1),
            kl_coeff=state.kl_coeff,
        ).samples
        shares, num_tokens = _shares(passes, samples, buckets, num_buckets)
        of_group = functools.partial(
            _group_gradient, alone, state, frozen, samples, num_groups
        )

        def measure_part(factors):
            return _over_buckets(
                functools.partial(of_group, factors), alone, state, buckets, shares
            )

        norms, losses, squares = jax.lax.map(measure_part, factors)
        return BucketGradients(norms, losses, squares, num_tokens)

    return jax.jit(measure, out_shardings=replicated(passes.mesh))


def _shares(
    passes: Passes, samples: Samples, buckets: Int[Array, " G"], num_buckets: int
) -> tuple[Float[Array, "b G"], Float[Array, " b"]]:
    """A group's factor in every bucket's gradient, and the buckets' tokens."""
    num_groups = buckets.shape[0]
    by_group = samples.mask.reshape(num_groups, -1, samples.mask.shape[1])
    own = jax.vmap(passes.objective.weights)(by_group).sum((1, 2))

    def of_bucket(b):
        is_in = (buckets == b) | (b == num_buckets)
        mask = (by_group & is_in[:, None, None]).reshape(samples.mask.shape)
        held = passes.objective.weights(mask).reshape(by_group.shape).sum((1, 2))
        return jnp.where(own > 0, held / jnp.where(own > 0, own, 1.0), 0.0), mask.sum()

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
    """Gradient and loss of one part, of one group as its own minibatch."""
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
    is_empty = ~jnp.any(samples.mask[rows], axis=1)
    # Rows without trained tokens, turns that were not played, are not read.
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
    """Norms, losses and mean squares of one part, bucket by bucket and of all."""
    order = jnp.argsort(buckets, stable=True)
    num_buckets = shares.shape[0] - 1
    starts = jnp.searchsorted(buckets[order], jnp.arange(num_buckets + 1))
    zero = jnp.float32(0)

    def zeros():
        tree = jax.tree.map(jnp.zeros_like, state.policy.params)
        return jax.lax.with_sharding_constraint(tree, passes.weight_shardings[0])

    def add(total, grads, share, loss):
        tree, total_loss, squares = total
        tree = jax.tree.map(lambda x, y: x + share * y, tree, grads)
        squares += (share * optax.tree.norm(grads)) ** 2
        return tree, total_loss + share * loss, squares

    def of_bucket(everything, b):
        def step(i, carry):
            everything, own = carry
            group = order[i]
            grads, loss = of_group(group)
            own = add(own, grads, shares[b, group], loss)
            return add(everything, grads, shares[-1, group], loss), own

        start, end = starts[b], starts[b + 1]
        own = (zeros(), zero, zero)
        everything, own = jax.lax.fori_loop(start, end, step, (everything, own))
        return everything, _finish(own, end - start)

    everything, told = jax.lax.scan(
        of_bucket, (zeros(), zero, zero), jnp.arange(num_buckets)
    )
    last = _finish(everything, buckets.shape[0])
    return jax.tree.map(lambda x, y: jnp.append(x, y), told, last)


def _finish(total, num_groups) -> tuple:
    """Norm, loss, and mean of squared contributions `n * share * gradient`."""
    tree, loss, squares = total
    return optax.tree.norm(tree), loss, squares * num_groups
