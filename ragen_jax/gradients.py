"""The diagnostic of gradients by reward spread, for a run.

In: a configuration and a program. Out: a `ragen_jax.diagnosis.Diagnose` whose metrics
are named `grad_norm/<bucket>/...`.
"""

import functools
from collections.abc import Callable

import jax
import numpy as np
from ml_collections import ConfigDict

from ragen_jax.algo.filters import SCORES
from ragen_jax.diagnostics.buckets import BUCKET_MODES, bucket_metrics
from ragen_jax.learner.bucket_gradients import make_bucket_gradients, parts_of
from ragen_jax.program import Program
from ragen_jax.timing import timed


def make_gradients(config: ConfigDict, program: Program) -> Callable:
    """The measurement, before the filter; see `ragen_jax.learner.bucket_gradients`."""
    learner, size = program.learner, config.rollout.group_size
    num_buckets = config.diagnostics.gradient_buckets
    bucket_of = BUCKET_MODES[config.diagnostics.gradient_bucket_mode]
    parts = parts_of(learner.passes)
    spread = jax.jit(functools.partial(SCORES["reward_std"], group_size=size))
    gradients = make_bucket_gradients(
        learner.passes,
        learner.credit,
        num_groups=config.rollout.num_groups,
        group_size=size,
        num_buckets=num_buckets,
    )

    def measure(done, state, rollouts, batch):
        del done, rollouts
        timing = {}
        with timed(timing, "gradient_buckets"):
            stds = np.asarray(jax.device_get(spread(batch)))
            buckets = bucket_of(stds, num_buckets)
            found = jax.device_get(gradients(program.frozen, state, batch, buckets))
        metrics = bucket_metrics(
            stds,
            buckets,
            size,
            num_tokens=found.num_tokens,
            norms=dict(zip(parts, found.norms, strict=True)),
            losses=dict(zip(parts, found.losses, strict=True)),
            squares=found.squares[0],
        )
        return {f"grad_norm/{name}": x for name, x in metrics.items()} | timing

    return measure
