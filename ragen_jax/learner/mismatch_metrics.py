"""Metrics of the sampler against the learner.

In: the sums over the first minibatch of an update, before any step. Out: see
`ragen_jax.learner.metrics`. Sampler and learner have the same parameters then, unless
rollouts are one iteration ahead of the updates (`rollout.ahead`).
"""

import functools

import jax.numpy as jnp
from jaxtyping import Array, Float

from ragen_jax.algo.mismatch import MismatchSums
from ragen_jax.tables.metrics import Metric, View

_update = functools.partial(Metric, section="update")


def _per_token(total: Float[Array, ""], sums: MismatchSums) -> Float[Array, ""]:
    return total / jnp.maximum(sums.num_tokens, 1.0)


def _effective_sample_size(sums: MismatchSums) -> Float[Array, ""]:
    # A sum of squares is below the smallest float only where every weight is.
    squares = jnp.maximum(sums.squared_weight, jnp.finfo(jnp.float32).tiny)
    return _per_token(sums.weight**2 / squares, sums)


# `value` takes `MismatchSums`.
MISMATCH_METRICS = (
    _update(
        "actor/sampler_log_prob_difference",
        "mean |learner's - sampler's log-probability| of the first minibatch, before "
        "any step",
        views=(View("Learner against sampler", "nats per token"),),
        healthy="1e-6 in float32, below 0.02 in bfloat16; with `rollout.ahead` what "
        "one update changes",
        cure="above `train.max_sampler_difference` the run ends with an error",
        value=lambda s: _per_token(s.difference, s),
    ),
    _update(
        "actor/sampler_log_prob_difference_max",
        "the largest of these differences",
        value=lambda s: s.max_difference,
    ),
    _update(
        "actor/sampler_kl",
        "k3 estimate of KL(sampler || learner) per token",
        healthy="near 0",
        value=lambda s: _per_token(s.kl, s),
    ),
    _update(
        "actor/sampler_effective_sample_size",
        "(sum w)^2 / (n sum w^2) of the weights w = learner / sampler",
        kind="share",
        healthy="near 1: all weights are equal",
        cure="far below 1 with `rollout.ahead`: lower the learning rate, or set it to "
        "0",
        value=_effective_sample_size,
    ),
    _update(
        "actor/sampler_weight_mean",
        "mean of these weights, before any is truncated",
        healthy="near 1",
        value=lambda s: _per_token(s.weight, s),
    ),
    _update(
        "actor/sampler_weight_max",
        "the largest of them",
        value=lambda s: s.max_weight,
    ),
    _update(
        "actor/sampler_weight_truncated",
        "share of them above `loss.importance_cap`, which count as the cap; 0 without",
        kind="share",
        healthy="near 0",
        value=lambda s: _per_token(s.num_truncated, s),
    ),
)

# By `ragen_jax.ahead`.
STALENESS = _update(
    "actor/staleness",
    "updates between the parameters that played the episodes and those that began to "
    "learn from them; only with `rollout.ahead`",
    healthy="0 in the first iteration, then `learner.updates_per_rollout`",
)
