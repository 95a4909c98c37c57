"""The numbers an update reports.

In: what the loop over minibatches summed up. Out: float32 scalars by name, RAGEN's
where it has one. Means are over the trained tokens of the optimizer steps taken, each
computed before its step; 0 when none was taken.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ragen_jax.algo.masked import masked_mean, masked_variance
from ragen_jax.algo.mismatch import MISMATCH_METRICS, mismatch_metrics
from ragen_jax.algo.repetition import distinct_ngrams, top_reply_share
from ragen_jax.algo.segments import Estimate, Readings
from ragen_jax.algo.selection import FILTER_METRICS
from ragen_jax.learner.state import TrainState
from ragen_jax.types import Trajectory

Stats = dict[str, Float[Array, ""]]


def learning_stats(
    before: TrainState, progress, num_minibatches, trainer, reward_kl
) -> Stats:
    """Metrics of the optimizer steps.

    Args:
      before: the state they began with.
      progress: the loop's `Progress` after the last of them.
      num_minibatches: how many ran.
      trainer: the `Trainer` that took them.
      reward_kl: mean KL per token that the reward was charged for.
    """
    sums, after = progress.sums, progress.state
    num_tokens = jnp.maximum(sums.num_tokens, 1.0)
    num_steps = jnp.maximum(after.num_updates - before.num_updates, 1)
    policy_rate, critic_rate = trainer.rates(before)
    stats = {
        "actor/pg_loss": sums.policy_loss / num_tokens,
        "actor/entropy": sums.entropy / num_tokens,
        "actor/pg_clipfrac": sums.is_clipped / num_tokens,
        "actor/ppo_kl": sums.kl / num_tokens,
        "actor/grad_norm": progress.grad_norm / num_steps,
        "actor/lr": policy_rate,
        "actor/num_minibatches": num_minibatches,
        "actor/num_tokens": sums.num_tokens,
        "actor/skipped": after.num_skipped - before.num_skipped,
        "actor/consecutive_skipped": after.consecutive_skipped,
        "actor/ref_kl": sums.ref_kl / num_tokens + reward_kl,
        "actor/kl_coeff": before.kl_coeff,
    }
    mismatch = mismatch_metrics(progress.first.mismatch)
    stats |= {_MISMATCH_NAMES[name]: value for name, value in mismatch.items()}
    if before.critic is not None:
        stats |= {
            "critic/vf_loss": sums.value_loss / num_tokens,
            "critic/vf_clipfrac": sums.value_is_clipped / num_tokens,
            "critic/vpred_mean": sums.value / num_tokens,
            "critic/grad_norm": progress.critic_grad_norm / num_steps,
            "critic/lr": critic_rate,
        }
    return {name: jnp.asarray(x, jnp.float32) for name, x in stats.items()}


def reply_stats(trajectory: Trajectory) -> Stats:
    """Metrics of what was sampled, of all rows."""
    return {
        "rollout/distinct_3gram": distinct_ngrams(trajectory, 3),
        "rollout/top_reply_share": top_reply_share(trajectory),
    }


def credit_stats(
    mask: Bool[Array, "B T"], estimate: Estimate, readings: Readings
) -> Stats:
    """Metrics of the advantages and, with a critic, of what it knew beforehand."""
    stats = {
        "actor/advantage_mean": masked_mean(estimate.advantages, mask),
        "actor/advantage_std": jnp.sqrt(
            masked_variance(estimate.advantages, mask, ddof=1)
        ),
    }
    if readings.values is not None:
        error = estimate.returns - readings.values
        variance = masked_variance(estimate.returns, mask, ddof=1)
        unexplained = masked_variance(error, mask, ddof=1)
        stats["critic/returns_mean"] = masked_mean(estimate.returns, mask)
        explained = 1 - unexplained / (variance + 1e-5)
        stats["critic/vf_explained_var"] = jnp.where(jnp.any(mask), explained, 0.0)
    return {name: jnp.asarray(x, jnp.float32) for name, x in stats.items()}


_MISMATCH_NAMES = {
    "mean_difference": "actor/sampler_log_prob_difference",
    "max_difference": "actor/sampler_log_prob_difference_max",
    "kl": "actor/sampler_kl",
    "effective_sample_size": "actor/sampler_effective_sample_size",
}

# Every number `update` reports; those of the critic only where there is one.
METRICS = {
    "actor/pg_loss": "mean policy loss per token",
    "actor/entropy": "mean entropy (nats) at the sampling temperature",
    "actor/pg_clipfrac": "share of tokens whose loss was clipped",
    "actor/ppo_kl": "mean of old - new log-probability",
    "actor/grad_norm": "mean global norm of the gradient before clipping",
    "actor/lr": "learning rate, 0 while only the critic is trained",
    "actor/num_minibatches": "minibatches run",
    "actor/num_tokens": "tokens trained on, counted once per epoch",
    "actor/skipped": "steps not taken because a gradient was not finite",
    "actor/consecutive_skipped": "those in a row up to now, across iterations",
    "actor/ref_kl": "KL to the reference per token, where a KL penalty is on",
    "actor/kl_coeff": "weight of the KL penalty, 0 where there is none",
    "actor/advantage_mean": "mean advantage per token",
    "actor/advantage_std": "its standard deviation",
    "critic/vf_loss": "mean value loss per token",
    "critic/vf_clipfrac": "share of tokens whose value loss was clipped",
    "critic/vpred_mean": "mean value per token",
    "critic/grad_norm": "mean global norm of the critic's gradient before clipping",
    "critic/lr": "the critic's learning rate",
    "critic/returns_mean": "mean return per token: what the value should have been",
    "critic/vf_explained_var": "1 - var(return - value) / var(return), before any step",
}
METRICS |= {
    _MISMATCH_NAMES[name]: f"{text}, over the first minibatch, before any step"
    for name, text in MISMATCH_METRICS.items()
}
METRICS |= FILTER_METRICS
METRICS |= {
    "rollout/distinct_3gram": "different triples of tokens in a row of a reply, over "
    "all such triples of the batch",
    "rollout/top_reply_share": "share of the replies equal to the commonest one",
}
