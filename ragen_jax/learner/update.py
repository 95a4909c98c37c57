"""One iteration of learning, as one compiled program.

In: the train state, a batch of episodes, a key for the order of the rows. Out: the new
state and a number per entry of `METRICS`. The story is told by `update`, at the bottom
of `make_update`: score the groups, keep some, compute advantages, then optimizer steps
over minibatches of the kept rows, each accumulated over microbatches (`passes`).

Numbers of rows are data here, not shapes: the kept rows come first in a permutation,
and only as many minibatches and microbatches run as they fill. Dropped groups cost no
compute, and another number of them compiles nothing. Reference: RAGEN sections 3 and 4,
arXiv 2504.20073; StarPO-S is `keep_fraction` < 1 with `clip_high` > `clip_low`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from ragen_jax.algo.advantages import ADVANTAGES
from ragen_jax.algo.filters import RULES, SCORES, ZERO_SCORE
from ragen_jax.algo.masked import masked_mean
from ragen_jax.learner.objective import TokenSums, gather_samples
from ragen_jax.learner.passes import Passes, kept_first
from ragen_jax.learner.sharding import replicated
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
      policy, optimizer: the network and what `build_optimizer` made.
      shardings: where the state lives, see `state_shardings`.
      learning_rate: the optimizer's, for the record.
      others: the configuration's keys of these names, see `configs/base.py`.

    Raises:
      ValueError: the sizes do not fit each other or, when called, the trajectory.
    """
    _check_division(minibatch_rows, microbatch_rows)
    passes = Passes(
        policy=policy,
        shardings=shardings,
        microbatch_rows=microbatch_rows,
        temperature=temperature,
        logprob_chunk_tokens=logprob_chunk_tokens,
        clip_low=clip_low,
        clip_high=clip_high,
        entropy_coeff=entropy_coeff,
        importance_cap=importance_cap,
    )

    def update(state, trajectory, key):
        _check_rows(trajectory, num_groups, group_size)
        scores = SCORES["reward_std"](trajectory, group_size=group_size)
        kept_groups = RULES["top_fraction"](scores, keep_fraction=keep_fraction)
        kept = jnp.repeat(kept_groups, group_size)
        trajectory = _drop_rows(trajectory, kept)
        advantages = ADVANTAGES[advantage](trajectory, group_size=group_size)
        samples = gather_samples(trajectory, advantages)
        samples = passes.with_old_log_probs(state.params, samples, kept)
        progress, num_minibatches = _run_minibatches(
            optimizer,
            lambda params, rows: passes.gradient(params, samples, rows),
            (state, kept, key),
            minibatch_rows=minibatch_rows,
            epochs=epochs,
        )
        stats = _learning_stats(state, progress, num_minibatches, learning_rate)
        stats |= _filter_stats(scores, kept_groups)
        return progress.state.replace(iteration=state.iteration + 1), stats

    whole = replicated(shardings.iteration.mesh)
    return jax.jit(update, donate_argnums=0, out_shardings=(shardings, whole))


def _check_division(minibatch_rows: int, microbatch_rows: int) -> None:
    if minibatch_rows % microbatch_rows:
        raise ValueError(
            f"learner.minibatch_rows = {minibatch_rows} is not a multiple of "
            f"learner.microbatch_rows = {microbatch_rows}; change one of them"
        )


def _check_rows(trajectory: Trajectory, num_groups: int, group_size: int) -> None:
    num_rows = trajectory.tokens.shape[0]
    if num_rows != num_groups * group_size:
        raise ValueError(
            f"the trajectory has {num_rows} rows, but this update was made for "
            f"{num_groups} groups of {group_size}; make both from one configuration"
        )


def _drop_rows(trajectory: Trajectory, kept: Bool[Array, " B"]) -> Trajectory:
    """The trajectory with nothing to train on outside the kept rows."""
    return trajectory.replace(loss_mask=trajectory.loss_mask & kept[:, None])


def _run_minibatches(
    optimizer: optax.GradientTransformation,
    gradient: Callable[[Params, Array], tuple[Params, TokenSums]],
    start: tuple[TrainState, Bool[Array, " B"], Key[Array, ""]],
    *,
    minibatch_rows: int,
    epochs: int,
) -> tuple[Progress, Int[Array, ""]]:
    """Optimizer steps over the kept rows; also returns how many minibatches ran."""
    state, kept, key = start
    per_epoch = -(-jnp.sum(kept) // minibatch_rows)

    def step(i, progress):
        draws = jax.random.uniform(jax.random.fold_in(key, i // per_epoch), kept.shape)
        order = kept_first(kept, draws, minibatch_rows)
        first = i % per_epoch * minibatch_rows
        rows = jax.lax.dynamic_slice_in_dim(order, first, minibatch_rows)
        grads, sums = gradient(progress.state.params, rows)
        return _step(optimizer, progress, i, grads, sums)

    zero = jnp.zeros((), jnp.float32)
    progress = Progress(state, TokenSums.zero(), TokenSums.zero(), zero)
    num_minibatches = epochs * per_epoch
    return jax.lax.fori_loop(0, num_minibatches, step, progress), num_minibatches


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


def _learning_stats(
    before: TrainState, progress: Progress, num_minibatches, learning_rate: float
) -> Stats:
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
        "actor/lr": learning_rate,
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
