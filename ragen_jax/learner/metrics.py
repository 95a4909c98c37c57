"""Metrics of an update: of its replies, its filter, its advantages and its steps.

In: what the stages of an update computed. Out: float32 scalars by name, RAGEN's where
it has one. Runs inside `jit`. Means are over the trained tokens of the optimizer steps
taken, each computed before its step; 0 when none was taken.

To add a metric, add a declaration to the table of its stage: it is then recorded, drawn
where its views say, and documented.
"""

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ragen_jax.algo.filters import ZERO_SCORE, reward_std
from ragen_jax.algo.masked import masked_mean, masked_variance
from ragen_jax.algo.mismatch import MismatchSums
from ragen_jax.algo.repetition import distinct_ngrams, top_reply_share
from ragen_jax.algo.segments import Estimate, takes_part
from ragen_jax.algo.selection import FilterResult
from ragen_jax.learner.batch import game_rewards
from ragen_jax.learner.loss import TokenStats
from ragen_jax.registry.metrics import Metric, View
from ragen_jax.types import Trajectory

_update = functools.partial(Metric, section="update")


def _per_mismatch_token(
    total: Float[Array, ""], sums: MismatchSums
) -> Float[Array, ""]:
    return total / jnp.maximum(sums.num_tokens, 1.0)


def _effective_sample_size(sums: MismatchSums) -> Float[Array, ""]:
    # A sum of squares is below the smallest float only where every weight is.
    squares = jnp.maximum(sums.squared_weight, jnp.finfo(jnp.float32).tiny)
    return _per_mismatch_token(sums.weight**2 / squares, sums)


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
        value=lambda s: _per_mismatch_token(s.difference, s),
    ),
    _update(
        "actor/sampler_log_prob_difference_max",
        "largest difference of the log-probabilities in the first minibatch",
        value=lambda s: s.max_difference,
    ),
    _update(
        "actor/sampler_kl",
        "k3 estimate of KL(sampler || learner) per token",
        healthy="near 0",
        value=lambda s: _per_mismatch_token(s.kl, s),
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
        "mean of the weights learner / sampler, before any is truncated",
        healthy="near 1",
        value=lambda s: _per_mismatch_token(s.weight, s),
    ),
    _update(
        "actor/sampler_weight_max",
        "largest of the weights learner / sampler",
        value=lambda s: s.max_weight,
    ),
    _update(
        "actor/sampler_weight_truncated",
        "share of these weights above `loss.importance_cap`, which count as the cap; 0 "
        "without a cap",
        kind="share",
        healthy="near 0",
        value=lambda s: _per_mismatch_token(s.num_truncated, s),
    ),
)

# By `ragen_jax.program.prefetch`.
STALENESS = _update(
    "actor/staleness",
    "updates between the parameters that played the episodes and those that began to "
    "learn from them; only with `rollout.ahead`",
    healthy="0 in the first iteration, then `learner.updates_per_rollout`",
)


Stats = dict[str, Float[Array, ""]]


def reply_stats(trajectory: Trajectory) -> Stats:
    return _measure(REPLY_METRICS, trajectory)


class FilterCase(NamedTuple):
    """Argument of the filter's metrics; `stds` of each group's raw rewards."""

    stds: Float[Array, " G"]
    result: FilterResult


def filter_stats(
    trajectory: Trajectory, result: FilterResult, *, group_size: int
) -> Stats:
    rewards = game_rewards(trajectory)
    stds = reward_std(rewards, result.counted, group_size=group_size)
    return _measure(FILTER_METRICS, FilterCase(stds, result))


class CreditCase(NamedTuple):
    """Argument of the advantages' metrics; `mask` of the trained tokens."""

    mask: Bool[Array, "B T"]
    estimate: Estimate
    before: TokenStats


def credit_stats(mask, estimate: Estimate, before: TokenStats) -> Stats:
    """Metrics of the advantages and, with a critic, of its values before any step."""
    case = CreditCase(mask, estimate, before)
    stats = _measure(ADVANTAGE_METRICS, case)
    return stats if before.values is None else stats | _measure(VALUE_METRICS, case)


class StepsCase(NamedTuple):
    """Argument of the optimizer steps' metrics.

    Attributes:
      before: train state before the first step.
      carry: the loop's `LoopCarry` after the last one.
      num_minibatches: minibatches run.
      rates: learning rates of the policy and of the critic.
      reward_kl: mean KL per token that the reward was charged for.
    """

    before: Any
    carry: Any
    num_minibatches: Array
    rates: tuple[Array, Array]
    reward_kl: Array

    def per_token(self, name: str) -> Array:
        """Mean of a field of `TokenSums` over the tokens trained on."""
        return _per_token(self.carry.sums, name)

    def per_step(self, total: Array) -> Array:
        """Mean over the steps taken."""
        taken = self.carry.state.num_updates - self.before.num_updates
        return total / jnp.maximum(taken, 1).astype(jnp.float32)


def learning_stats(before, carry, num_minibatches, trainer, reward_kl) -> Stats:
    """Metrics of the optimizer steps of a `Trainer`; see `StepsCase` for the rest."""
    rates = trainer.rates(before)
    case = StepsCase(before, carry, num_minibatches, rates, reward_kl)
    stats = _measure(STEP_METRICS, case)
    # Before any step changes the learner.
    stats |= _measure(MISMATCH_METRICS, carry.first.mismatch)
    return stats if before.critic is None else stats | _measure(CRITIC_METRICS, case)


def _measure(metrics: Iterable[Metric], case) -> Stats:
    values = {metric.name: metric.value(case) for metric in metrics}
    return {name: jnp.asarray(x, jnp.float32) for name, x in values.items()}


def _per_token(sums, name: str) -> Array:
    return getattr(sums, name) / jnp.maximum(sums.num_tokens, 1.0)


def _explained_variance(case: CreditCase) -> Array:
    returns, mask = case.estimate.returns, case.mask
    variance = masked_variance(returns, mask, ddof=1)
    unexplained = masked_variance(returns - case.before.values, mask, ddof=1)
    explained = 1 - unexplained / (variance + 1e-5)
    return jnp.where(jnp.any(mask), explained, 0.0)


_PER_TOKEN = "nats per token"

# `value` takes a trajectory.
REPLY_METRICS = (
    Metric(
        "rollout/distinct_3gram",
        "distinct triples of successive tokens of a reply, over all such triples "
        "of the batch",
        section="indicators",
        kind="share",
        views=(View("Distinct 3-grams", "share of all 3-grams"),),
        healthy="near its first value (0.05 here; depends on the size of the batch)",
        cure="falls: templates",
        value=lambda t: distinct_ngrams(
            t.tokens, t.loss_mask, turn_index=t.turn_index, size=3
        ),
    ),
    Metric(
        "rollout/top_reply_share",
        "share of the replies equal to the most frequent one",
        section="indicators",
        kind="share",
        views=(View("Most frequent reply", "share of replies"),),
        healthy="near its first value (0.02 here; depends on the size of the batch)",
        cure="rises: templates",
        value=lambda t: top_reply_share(
            t.tokens,
            t.loss_mask,
            turn_index=t.turn_index,
            # Rows of games that failed have lost their replies.
            played=t.turns.played & takes_part(t.loss_mask)[:, None],
            reply_start=t.turns.reply_start,
        ),
    ),
)

# `value` takes a `FilterCase`.
FILTER_METRICS = (
    Metric(
        "rollout/in_group_reward_std",
        "mean over all groups of the standard deviation of their raw rewards: the "
        "signal that an update learns from",
        section="indicators",
        views=(View("Reward spread inside groups", "standard deviation of return"),),
        healthy="falls slowly as success rises",
        cure="falls to a fraction early: the echo trap. Filter groups (`starpo_s`), "
        "more rollouts per group",
        value=lambda c: jnp.mean(c.stds),
    ),
    _update(
        "rollout/chosen_in_group_reward_std",
        "mean reward spread of the groups that the filter keeps",
        value=lambda c: masked_mean(c.stds, c.result.kept_groups),
    ),
    _update(
        "rollout/filter_score",
        "mean score of all groups",
        value=lambda c: jnp.mean(c.result.scores),
    ),
    _update(
        "rollout/filter_kept_ratio",
        "share of the groups of which at least one row is kept",
        kind="share",
        views=(View("Groups kept by the filter", "share of groups"),),
        value=lambda c: jnp.mean(c.result.kept_groups, dtype=jnp.float32),
    ),
    _update(
        "rollout/filter_kept_count",
        "number of groups of which at least one row is kept",
        value=lambda c: jnp.sum(c.result.kept_groups),
    ),
    _update(
        "rollout/filter_kept_rows", "rows kept", value=lambda c: jnp.sum(c.result.kept)
    ),
    _update(
        "rollout/filter_zero_count",
        "groups whose score is 0",
        healthy="few at first",
        cure="many: levels are too easy or too hard",
        value=lambda c: jnp.sum(jnp.abs(c.result.scores) <= ZERO_SCORE),
    ),
    _update(
        "rollout/empty_after_filter",
        "1 if nothing was kept, else 0",
        healthy="0",
        cure="1 several times: the run ends (`train.max_empty_iterations`)",
        value=lambda c: ~jnp.any(c.result.kept),
    ),
)

# `value` takes a `CreditCase`.
ADVANTAGE_METRICS = (
    _update(
        "actor/advantage_mean",
        "mean advantage per token",
        value=lambda c: masked_mean(c.estimate.advantages, c.mask),
    ),
    _update(
        "actor/advantage_std",
        "standard deviation of the advantage per token",
        value=lambda c: jnp.sqrt(
            masked_variance(c.estimate.advantages, c.mask, ddof=1)
        ),
    ),
)

# The same, with a critic only.
VALUE_METRICS = (
    _update(
        "critic/returns_mean",
        "mean return per token, the target of the values",
        value=lambda c: masked_mean(c.estimate.returns, c.mask),
    ),
    _update(
        "critic/vf_explained_var",
        "1 - var(return - value) / var(return), before any step",
        views=(View("Explained variance of the critic", "share"),),
        healthy="rises above 0 (1: a perfect critic; 0: one that knows the mean alone)",
        cure="at 0 for long: PPO is no more than whitened rewards; train the critic "
        "first (`critic.warmup_updates`)",
        value=_explained_variance,
    ),
)

# `value` takes a `StepsCase`.
STEP_METRICS = (
    Metric(
        "actor/entropy",
        "mean entropy of the sampled tokens at the sampling temperature, nats",
        section="indicators",
        views=(View("Entropy of the sampled tokens", _PER_TOKEN, console="entropy"),),
        healthy="falls slowly",
        cure="near 0: the policy repeats itself; rises without end: drift into noise, "
        "lower `loss.entropy_coeff` or the learning rate",
        value=lambda s: s.per_token("entropy"),
    ),
    Metric(
        "actor/grad_norm",
        "mean global norm of the gradient before clipping",
        section="indicators",
        views=(View("Gradient norm", "global norm before clipping"),),
        healthy="steady",
        cure="spikes come before collapse; a rising trend: lower the learning rate",
        value=lambda s: s.per_step(s.carry.grad_norm),
    ),
    _update(
        "actor/pg_loss",
        "mean policy loss per token",
        value=lambda s: s.per_token("policy_loss"),
    ),
    _update(
        "actor/pg_clipfrac",
        "share of the tokens whose loss is clipped",
        kind="share",
        views=(View("Clipped tokens", "share of tokens"),),
        healthy="below 0.2",
        cure="above: fewer epochs or minibatches, a lower learning rate",
        value=lambda s: s.per_token("is_clipped"),
    ),
    _update(
        "actor/ppo_kl",
        "mean of old minus new log-probability",
        views=(View("Old minus new log-probability", _PER_TOKEN),),
        healthy="below 0.05",
        cure="above: fewer epochs or minibatches, a lower learning rate",
        value=lambda s: s.per_token("kl"),
    ),
    _update(
        "actor/ref_kl",
        "KL to the reference per token, where a KL penalty is on",
        views=(View("KL to the reference", _PER_TOKEN, needs="actor/kl_coeff"),),
        healthy="grows slowly",
        value=lambda s: s.per_token("ref_kl") + s.reward_kl,
    ),
    _update(
        "actor/kl_coeff",
        "weight of the KL penalty, 0 without one",
        value=lambda s: s.before.kl_coeff,
    ),
    _update(
        "actor/lr",
        "learning rate of the policy, 0 while only the critic is trained",
        value=lambda s: s.rates[0],
    ),
    _update(
        "actor/num_minibatches", "minibatches run", value=lambda s: s.num_minibatches
    ),
    _update(
        "actor/num_tokens",
        "tokens trained on, counted once per epoch",
        views=(View("Tokens trained on", "tokens per iteration", section="timing"),),
        healthy="above 0",
        cure="0: everything was filtered",
        value=lambda s: s.carry.sums.num_tokens,
    ),
    _update(
        "actor/skipped",
        "steps not taken because a gradient was not finite",
        healthy="0",
        cure="lower the learning rate; use float32",
        value=lambda s: s.carry.state.num_skipped - s.before.num_skipped,
    ),
    _update(
        "actor/consecutive_skipped",
        "successive steps not taken up to now, across iterations",
        healthy="0",
        cure="lower the learning rate; use float32",
        value=lambda s: s.carry.state.consecutive_skipped,
    ),
)

# The same, with a critic only.
CRITIC_METRICS = (
    _update(
        "critic/grad_norm",
        "mean global norm of the critic's gradient before clipping",
        healthy="steady",
        value=lambda s: s.per_step(s.carry.critic_grad_norm),
    ),
    _update(
        "critic/vf_loss",
        "mean value loss per token",
        value=lambda s: s.per_token("value_loss"),
    ),
    _update(
        "critic/vf_clipfrac",
        "share of the tokens whose value loss is clipped",
        kind="share",
        value=lambda s: s.per_token("value_is_clipped"),
    ),
    _update(
        "critic/vpred_mean",
        "mean value per token",
        value=lambda s: s.per_token("value"),
    ),
    _update("critic/lr", "learning rate of the critic", value=lambda s: s.rates[1]),
)

# Every metric of `update`; those of the critic only where there is one.
METRICS = (
    *FILTER_METRICS,
    *STEP_METRICS,
    *REPLY_METRICS,
    *MISMATCH_METRICS,
    *ADVANTAGE_METRICS,
    *VALUE_METRICS,
    *CRITIC_METRICS,
)
