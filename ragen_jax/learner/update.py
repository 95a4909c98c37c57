"""One iteration of learning, as one compiled program.

In: the train state, a batch of episodes, a key for the order of the rows. Out: the new
state and a number per entry of `METRICS`. The story is told by `update`, at the bottom
of `make_update`: score the groups, keep some, compute advantages, then optimizer steps
over minibatches of the kept rows, each accumulated over microbatches.

Numbers of rows are data here, not shapes: the kept rows come first in a permutation,
and only as many minibatches and microbatches run as they fill. Dropped groups cost no
compute, and another number of them compiles nothing. Reference: RAGEN sections 3 and 4,
arXiv 2504.20073; StarPO-S is `keep_fraction` < 1 with `clip_high` > `clip_low`.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from ragen_jax.algo.advantages import ADVANTAGES
from ragen_jax.algo.filters import RULES, SCORES, ZERO_SCORE
from ragen_jax.algo.masked import masked_mean
from ragen_jax.learner.logprobs import token_log_probs
from ragen_jax.learner.objective import Samples, TokenSums, gather_samples, loss
from ragen_jax.learner.sharding import by_rows, replicated
from ragen_jax.learner.state import TrainState
from ragen_jax.models.qwen2 import Policy
from ragen_jax.types import Params, Trajectory

Stats = dict[str, Float[Array, ""]]


@struct.dataclass
class Progress:
    """What the loop over minibatches carries.

    Attributes:
      state: the train state.
      sums: over the minibatches whose step was taken.
      first: of the first minibatch, computed with the sampler's own parameters.
      grad_norm: sum of the gradient's norms over the steps taken.
    """

    state: TrainState
    sums: TokenSums
    first: TokenSums
    grad_norm: Float[Array, ""]


def make_update(
    policy: Policy,
    optimizer: optax.GradientTransformation,
    shardings: TrainState,
    *,
    num_groups: int,
    group_size: int,
    temperature: float,
    learning_rate: float,
    minibatch_rows: int,
    microbatch_rows: int,
    epochs: int,
    logprob_chunk_tokens: int,
    advantage: str,
    clip_low: float,
    clip_high: float,
    entropy_coeff: float,
    importance_cap: float | None,
    keep_fraction: float,
) -> Callable[[TrainState, Trajectory, Key[Array, ""]], tuple[TrainState, Stats]]:
    """Build the compiled `update(state, trajectory, key) -> (state, stats)`.

    The state is donated: use the returned one. An optimizer step is not taken, and
    counted, when the gradient is not finite; it is not taken, and not counted, when no
    token of its minibatch is trained on.

    Args:
      policy: the network.
      optimizer: made by `build_optimizer`.
      shardings: where the state lives, see `state_shardings`.
      num_groups, group_size: layout of the trajectory's rows.
      temperature: the sampler's.
      learning_rate: the optimizer's, for the record.
      minibatch_rows: rows per optimizer step; the last minibatch may have fewer.
      microbatch_rows: rows per forward and backward pass, a divisor of it.
      epochs: passes over the kept rows, each in an order of its own.
      logprob_chunk_tokens: tokens whose logits exist at a time.
      advantage: entry of `ADVANTAGES`.
      clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high].
      entropy_coeff: weight of the entropy bonus.
      importance_cap: cap of the truncated importance weights against the sampler. It
        costs one more forward pass over the kept rows. None: off, the sampler's
        log-probabilities are the old ones.
      keep_fraction: share of the groups kept by reward standard deviation.
    """
    mesh = shardings.iteration.mesh
    log_prob_fn = functools.partial(
        token_log_probs,
        policy,
        temperature=temperature,
        chunk_tokens=logprob_chunk_tokens,
        row_sharding=by_rows(mesh),
    )
    loss_fn = functools.partial(
        loss,
        log_prob_fn,
        clip_low=clip_low,
        clip_high=clip_high,
        entropy_coeff=entropy_coeff,
        importance_cap=importance_cap,
    )
    take = functools.partial(_take_rows, sharding=by_rows(mesh))
    score_groups, choose_groups = SCORES["reward_std"], RULES["top_fraction"]
    estimate_advantages = ADVANTAGES[advantage]

    def update(state, trajectory, key):
        scores = score_groups(trajectory, group_size=group_size)
        kept_groups = choose_groups(scores, keep_fraction=keep_fraction)
        kept = jnp.repeat(kept_groups, group_size, total_repeat_length=num_rows)
        trained = trajectory.loss_mask & kept[:, None]
        trajectory = trajectory.replace(loss_mask=trained)
        advantages = estimate_advantages(trajectory, group_size=group_size)
        samples = gather_samples(trajectory, advantages)
        if importance_cap is not None:
            own = _own_log_probs(
                log_prob_fn, take, state.params, samples, kept, microbatch_rows
            )
            samples = samples.replace(old_log_probs=own)
        num_minibatches = -(-jnp.sum(kept) // minibatch_rows)

        def step(i, progress):
            epoch, minibatch = i // num_minibatches, i % num_minibatches
            order = _kept_first(jax.random.fold_in(key, epoch), kept, minibatch_rows)
            rows = jax.lax.dynamic_slice_in_dim(
                order, minibatch * minibatch_rows, minibatch_rows
            )
            grads, sums = _accumulate(
                loss_fn, take, progress.state.params, samples, rows, microbatch_rows
            )
            grads = jax.lax.with_sharding_constraint(grads, shardings.params)
            return _step(optimizer, progress, i, grads, sums)

        zero = jnp.zeros((), jnp.float32)
        progress = Progress(state, TokenSums.zero(), TokenSums.zero(), zero)
        progress = jax.lax.fori_loop(0, epochs * num_minibatches, step, progress)
        stats = _learning_stats(state, progress, epochs * num_minibatches)
        stats["actor/lr"] = jnp.asarray(learning_rate, jnp.float32)
        stats |= _filter_stats(scores, kept_groups)
        new_state = progress.state.replace(iteration=state.iteration + 1)
        return new_state, stats

    num_rows = num_groups * group_size
    return jax.jit(
        update, donate_argnums=0, out_shardings=(shardings, replicated(mesh))
    )


def _kept_first(
    key: Key[Array, ""], kept: Bool[Array, " B"], multiple: int
) -> Int[Array, " P"]:
    """Kept rows in random order, then `B` (no row) up to a multiple of `multiple`."""
    num_rows = kept.shape[0]
    draws = jnp.where(kept, jax.random.uniform(key, kept.shape), jnp.inf)
    order = jnp.argsort(draws, stable=True).astype(jnp.int32)
    is_row = jnp.arange(num_rows) < jnp.sum(kept)
    order = jnp.where(is_row, order, num_rows)
    return jnp.pad(order, (0, -num_rows % multiple), constant_values=num_rows)


def _take_rows(samples: Samples, rows: Int[Array, " b"], *, sharding) -> Samples:
    """Some rows of the samples; index `B` is a row without trained tokens."""
    is_row = rows < samples.tokens.shape[0]
    taken = jax.tree.map(lambda x: x.at[rows].get(mode="clip"), samples)
    taken = taken.replace(mask=taken.mask & is_row[:, None])
    return jax.lax.with_sharding_constraint(taken, sharding)


def _own_log_probs(
    log_prob_fn, take, params: Params, samples: Samples, kept, microbatch_rows: int
) -> Float[Array, "B T"]:
    """The learner's log-probabilities of the kept rows, 0 elsewhere."""
    order = _kept_first(jax.random.key(0), kept, microbatch_rows)

    def microbatch(j, log_probs):
        rows = jax.lax.dynamic_slice_in_dim(order, j * microbatch_rows, microbatch_rows)
        new, _ = log_prob_fn(params, take(samples, rows).tokens)
        return log_probs.at[rows].set(new, mode="drop")

    count = -(-jnp.sum(kept) // microbatch_rows)
    start = jnp.zeros(samples.tokens.shape, jnp.float32)
    return jax.lax.fori_loop(0, count, microbatch, start)


def _accumulate(
    loss_fn, take, params: Params, samples: Samples, rows, microbatch_rows: int
) -> tuple[Params, TokenSums]:
    """Gradient of a minibatch's mean loss over its trained tokens, and its sums."""
    is_row = rows < samples.tokens.shape[0]
    tokens_per_row = jnp.sum(samples.mask, axis=1).at[rows].get(mode="clip")
    num_tokens = jnp.sum(jnp.where(is_row, tokens_per_row, 0)).astype(jnp.float32)
    differentiate = jax.grad(loss_fn, has_aux=True)

    def microbatch(j, carry):
        grads, sums = carry
        part = jax.lax.dynamic_slice_in_dim(rows, j * microbatch_rows, microbatch_rows)
        new_grads, new_sums = differentiate(
            params, take(samples, part), jnp.maximum(num_tokens, 1.0)
        )
        return jax.tree.map(jnp.add, grads, new_grads), sums.plus(new_sums)

    # Rows come first: microbatches from here on hold none.
    count = -(-jnp.sum(is_row) // microbatch_rows)
    start = (jax.tree.map(jnp.zeros_like, params), TokenSums.zero())
    return jax.lax.fori_loop(0, count, microbatch, start)


def _step(optimizer, progress: Progress, i, grads: Params, sums: TokenSums) -> Progress:
    """Take one optimizer step, unless its gradient is empty or not finite."""
    state = progress.state
    norm = optax.tree.norm(grads)
    is_finite = jnp.isfinite(norm)
    is_taken = is_finite & (sums.num_tokens > 0)
    changes, opt_state = optimizer.update(grads, state.opt_state, state.params)
    stepped = state.replace(
        params=optax.apply_updates(state.params, changes),
        opt_state=opt_state,
        num_updates=state.num_updates + 1,
        consecutive_skipped=jnp.zeros_like(state.consecutive_skipped),
    )
    skip = (~is_finite).astype(jnp.int32)
    stayed = state.replace(
        num_skipped=state.num_skipped + skip,
        consecutive_skipped=state.consecutive_skipped + skip,
    )

    def choose(condition, new, old):
        return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)

    return Progress(
        state=choose(is_taken, stepped, stayed),
        sums=choose(is_taken, progress.sums.plus(sums), progress.sums),
        first=choose(i == 0, sums, progress.first),
        grad_norm=progress.grad_norm + jnp.where(is_taken, norm, 0.0),
    )


def _learning_stats(before: TrainState, progress: Progress, num_minibatches) -> Stats:
    """Metrics of the optimizer steps."""
    sums, first, after = progress.sums, progress.first, progress.state
    num_tokens = jnp.maximum(sums.num_tokens, 1.0)
    num_steps = jnp.maximum(after.num_updates - before.num_updates, 1)
    stats = {
        "actor/pg_loss": sums.policy_loss / num_tokens,
        "actor/entropy": sums.entropy / num_tokens,
        "actor/pg_clipfrac": sums.is_clipped / num_tokens,
        "actor/ppo_kl": sums.kl / num_tokens,
        "actor/grad_norm": progress.grad_norm / num_steps,
        "actor/num_minibatches": num_minibatches,
        "actor/num_tokens": sums.num_tokens,
        "actor/skipped": after.num_skipped - before.num_skipped,
        "actor/consecutive_skipped": after.consecutive_skipped,
        "actor/sampler_log_prob_difference": first.difference
        / jnp.maximum(first.num_tokens, 1.0),
        "actor/sampler_log_prob_difference_max": first.max_difference,
    }
    return {name: jnp.asarray(x, jnp.float32) for name, x in stats.items()}


def _filter_stats(scores: Float[Array, " G"], kept: Bool[Array, " G"]) -> Stats:
    """Metrics of the group filter."""
    stats = {
        "rollout/in_group_reward_std": jnp.mean(scores),
        "rollout/chosen_in_group_reward_std": masked_mean(scores, kept),
        "rollout/filter_kept_ratio": jnp.mean(kept, dtype=jnp.float32),
        "rollout/filter_kept_count": jnp.sum(kept),
        "rollout/filter_zero_count": jnp.sum(jnp.abs(scores) <= ZERO_SCORE),
    }
    return {name: jnp.asarray(x, jnp.float32) for name, x in stats.items()}


# Every number `update` reports. Means are over the trained tokens of the optimizer
# steps taken, each computed before its step; 0 when none was taken.
METRICS = {
    "actor/pg_loss": "mean policy loss per token",
    "actor/entropy": "mean entropy (nats) at the sampling temperature",
    "actor/pg_clipfrac": "share of tokens whose loss was clipped",
    "actor/ppo_kl": "mean of old - new log-probability",
    "actor/grad_norm": "mean global norm of the gradient before clipping",
    "actor/lr": "learning rate",
    "actor/num_minibatches": "minibatches run",
    "actor/num_tokens": "tokens trained on, counted once per epoch",
    "actor/skipped": "steps not taken because the gradient was not finite",
    "actor/consecutive_skipped": "those in a row up to now, across iterations",
    "actor/sampler_log_prob_difference": "mean |learner's - sampler's log-probability| "
    "over the first minibatch, before any step",
    "actor/sampler_log_prob_difference_max": "the largest of these differences",
    "rollout/in_group_reward_std": "mean over all groups of the raw rewards' "
    "standard deviation",
    "rollout/chosen_in_group_reward_std": "the same over the kept groups",
    "rollout/filter_kept_ratio": "share of groups kept",
    "rollout/filter_kept_count": "groups kept",
    "rollout/filter_zero_count": "groups whose standard deviation is 0",
}
