"""Forward and backward passes over chosen rows, one microbatch at a time.

In: parameters, the samples of all rows and indices of some, kept rows first. Out: their
log-probabilities, or the gradient of their loss. Only as many microbatches run as the
rows fill. What the rows were chosen for is the caller's business.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ragen_jax.learner.logprobs import token_log_probs
from ragen_jax.learner.objective import Samples, TokenSums, loss
from ragen_jax.learner.sharding import by_rows
from ragen_jax.learner.state import TrainState
from ragen_jax.models.qwen2 import Policy
from ragen_jax.types import Params


@dataclasses.dataclass(frozen=True)
class Passes:
    """How a network reads rows.

    Attributes:
      policy: the network.
      shardings: of the train state, see `state_shardings`.
      microbatch_rows: rows per pass.
      temperature, logprob_chunk_tokens: see `token_log_probs`.
      clip_low, clip_high, entropy_coeff, importance_cap: see `objective.loss`.
    """

    policy: Policy
    shardings: TrainState
    microbatch_rows: int
    temperature: float
    logprob_chunk_tokens: int
    clip_low: float
    clip_high: float
    entropy_coeff: float
    importance_cap: float | None

    def with_old_log_probs(
        self, params: Params, samples: Samples, kept: Bool[Array, " B"]
    ) -> Samples:
        """The samples with the log-probabilities that ratios are taken against.

        The sampler's own serve, unless importance weights are to correct them: then the
        learner computes those of the kept rows itself.
        """
        if self.importance_cap is None:
            return samples
        order = kept_first(kept, jnp.zeros(kept.shape), self.microbatch_rows)

        def microbatch(j, log_probs):
            rows = self._microbatch(order, j)
            new, _ = self._log_probs(params, self._take(samples, rows).tokens)
            return log_probs.at[rows].set(new, mode="drop")

        count = -(-jnp.sum(kept) // self.microbatch_rows)
        start = jnp.zeros_like(samples.old_log_probs)
        old = jax.lax.fori_loop(0, count, microbatch, start)
        return samples.replace(old_log_probs=old)

    def gradient(
        self, params: Params, samples: Samples, rows: Int[Array, " M"]
    ) -> tuple[Params, TokenSums]:
        """Gradient of a minibatch's mean loss over its trained tokens, and its sums."""
        is_row = rows < samples.tokens.shape[0]
        tokens_per_row = jnp.sum(samples.mask, axis=1).at[rows].get(mode="clip")
        num_tokens = jnp.sum(jnp.where(is_row, tokens_per_row, 0)).astype(jnp.float32)

        def microbatch(j, carry):
            grads, sums = carry
            part = self._take(samples, self._microbatch(rows, j))
            new_grads, new_sums = jax.grad(self._loss, has_aux=True)(
                params, part, jnp.maximum(num_tokens, 1.0)
            )
            return jax.tree.map(jnp.add, grads, new_grads), sums.plus(new_sums)

        # Rows come first: microbatches from here on hold none.
        count = -(-jnp.sum(is_row) // self.microbatch_rows)
        start = (jax.tree.map(jnp.zeros_like, params), TokenSums.zero())
        grads, sums = jax.lax.fori_loop(0, count, microbatch, start)
        return jax.lax.with_sharding_constraint(grads, self.shardings.params), sums

    def _loss(self, params, samples, num_tokens):
        return loss(
            self._log_probs,
            params,
            samples,
            num_tokens,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            entropy_coeff=self.entropy_coeff,
            importance_cap=self.importance_cap,
        )

    def _log_probs(self, params, tokens):
        return token_log_probs(
            self.policy,
            params,
            tokens,
            temperature=self.temperature,
            chunk_tokens=self.logprob_chunk_tokens,
            row_sharding=by_rows(self.shardings.iteration.mesh),
        )

    def _microbatch(self, rows: Int[Array, " M"], j) -> Int[Array, " m"]:
        first = j * self.microbatch_rows
        return jax.lax.dynamic_slice_in_dim(rows, first, self.microbatch_rows)

    def _take(self, samples: Samples, rows: Int[Array, " m"]) -> Samples:
        """Some rows; index `B` is a row without trained tokens."""
        is_row = rows < samples.tokens.shape[0]
        taken = jax.tree.map(lambda x: x.at[rows].get(mode="clip"), samples)
        taken = taken.replace(mask=taken.mask & is_row[:, None])
        split = by_rows(self.shardings.iteration.mesh)
        return jax.lax.with_sharding_constraint(taken, split)


def kept_first(
    kept: Bool[Array, " B"], draws: Float[Array, " B"], multiple: int
) -> Int[Array, " P"]:
    """Kept rows by their draws, then `B` (no row) up to a multiple of `multiple`."""
    num_rows = kept.shape[0]
    draws = jnp.where(kept, draws, jnp.inf)
    order = jnp.argsort(draws, stable=True).astype(jnp.int32)
    is_row = jnp.arange(num_rows) < jnp.sum(kept)
    order = jnp.where(is_row, order, num_rows)
    return jnp.pad(order, (0, -num_rows % multiple), constant_values=num_rows)
