"""Updates of the tiny learner under any setting, in float64, one token at a time.

Nothing of the learner's is used, nor automatic differentiation. Tables are looked up in
the other oracles. The order of the rows follows the learner's rule: kept rows by their
draw from the epoch's key.
"""

import math

import jax
import numpy as np

from tests.reference import advantages_oracle as advantages
from tests.reference import filters_oracle as filters
from tests.reference import losses_oracle as losses
from tests.reference import rewards_oracle as rewards_of
from tests.reference.tiny_network import Network, Reading, norm_of


class Learner:
    """The oracle's train state; `update` changes it and returns some stats."""

    def __init__(self, config, policy_params, critic_params=None):
        self.config = config
        self.policy = Network(policy_params)
        self.critic = None if critic_params is None else Network(critic_params)
        self.reference = dict(self.policy.params)
        self.kl_coeff, self.iteration = config.kl.coeff, 0

    def update(self, trajectory, key) -> dict[str, float]:
        config, rows = self.config, _as_numpy(trajectory)
        policy, values = self._read(rows.tokens)
        kept, scores, scale = choose(config, rows, policy.entropy)
        mask = rows.mask & kept[:, None]
        if not mask.any():
            self.iteration += 1
            return {"rollout/filter_kept_rows": 0, "actor/num_tokens": 0}
        old = np.where(mask, rows.sampled, 0.0)
        if config.loss.old_log_probs == "learner":
            old = policy.log_probs
        ref = Reading(self.reference, rows.tokens, config.rollout.temperature).log_probs
        credit = assign(config, rows, mask, old, ref, values, scale, self.kl_coeff)
        names = ("loss", "entropy", "kl", "value_loss", "tokens", "steps", "norm")
        sums = dict.fromkeys((*names, "critic_norm"), 0.0)
        for chosen in minibatches(config, kept, key):
            self._step(rows, mask, chosen, credit, (old, ref, values), sums)
        count = max(sums["tokens"], 1.0)
        stats = {
            "rollout/filter_score": np.mean(scores),
            "rollout/filter_kept_rows": kept.sum(),
            "actor/pg_loss": sums["loss"] / count,
            "actor/entropy": sums["entropy"] / count,
            "actor/kl_coeff": self.kl_coeff if config.kl.placement else 0.0,
            "actor/ref_kl": sums["kl"] / count,
            "actor/num_tokens": sums["tokens"],
            "actor/grad_norm": sums["norm"] / sums["steps"],
        }
        if config.kl.placement == "reward":
            stats["actor/ref_kl"] = credit["kl"]
        if self.critic is not None:
            stats["critic/vf_loss"] = sums["value_loss"] / count
            stats["critic/grad_norm"] = sums["critic_norm"] / sums["steps"]
            stats["critic/vf_explained_var"] = explained(credit, values, mask)
        self._adapt(stats["actor/ref_kl"], kept.sum())
        self.iteration += 1
        return stats

    def _read(self, tokens):
        """The policy's reading, and values by whichever trunk makes them."""
        config, head = self.config, None
        if self.critic is not None:
            head = self.critic.part("head")
        policy = Reading(self.policy.params, tokens, config.rollout.temperature, head)
        if self.critic is None or config.critic.trunk == "shared":
            return policy, policy.values
        return policy, Reading(self.critic.part("trunk"), tokens, 1.0, head).values

    def _step(self, rows, mask, chosen, credit, readings, sums) -> None:
        """One optimizer step of both networks on some rows."""
        config, tokens, head = self.config, rows.tokens[chosen], None
        old, ref, old_values = readings
        if self.critic is not None:
            head = self.critic.part("head")
        policy = Reading(self.policy.params, tokens, config.rollout.temperature, head)
        own = config.critic.trunk == "separate" and self.critic is not None
        critic = policy
        if own:
            critic = Reading(self.critic.part("trunk"), tokens, 1.0, head)
        by_log_prob, by_entropy, by_value = (np.zeros(tokens.shape) for _ in range(3))
        for (i, t), weight in token_weights(config.loss.aggregation, mask[chosen]):
            row = chosen[i]
            trained = np.flatnonzero(mask[row])
            loss, slope = policy_loss(
                config.loss,
                (policy.log_probs[i, t], old[row, t], credit["advantages"][row, t]),
                (policy.log_probs[i, trained], old[row, trained]),
            )
            if config.loss.importance_cap is not None:
                factor = losses.importance_weight(
                    old[row, t], rows.sampled[row, t], config.loss.importance_cap
                )
                loss, slope = loss * factor, slope * factor
            if config.kl.placement == "loss":
                pair = policy.log_probs[i, t], ref[row, t]
                slope += self.kl_coeff * losses.kl_gradient(config.kl.estimator, *pair)
                sums["kl"] += losses.kl(config.kl.estimator, *pair)
            by_log_prob[i, t] = weight * slope
            by_entropy[i, t] = -weight * config.loss.entropy_coeff
            if self.critic is not None:
                value_loss, value_slope = value_loss_of(
                    critic.values[i, t],
                    old_values[row, t],
                    credit["returns"][row, t],
                    config.critic.clip_value,
                )
                by_value[i, t] = weight * config.critic.loss_coeff * value_slope
                sums["value_loss"] += value_loss
            sums["loss"] += loss
            sums["entropy"] += policy.entropy[i, t]
            sums["tokens"] += 1
        slopes = by_log_prob, by_entropy, by_value
        self._advance(policy, critic, slopes, own, sums)

    def _advance(self, policy, critic, slopes, own, sums) -> None:
        config = self.config
        by_log_prob, by_entropy, by_value = slopes
        nothing = np.zeros_like(by_value)
        through_policy = by_value if self.critic is not None and not own else None
        grads, by_head = policy.gradient(by_log_prob, by_entropy, through_policy)
        sums["steps"] += 1
        sums["norm"] += norm_of(grads)
        trunk_grads = {}
        if own:
            trunk_grads, by_head = critic.gradient(nothing, nothing, by_value)
        if self.iteration >= config.critic.warmup_updates or self.critic is None:
            rate = learning_rate(
                config.schedule, config.optimizer.learning_rate, self.iteration
            )
            self.policy.step(grads, rate, config.optimizer)
        if self.critic is not None:
            rate = learning_rate(
                config.schedule, config.critic.learning_rate, self.iteration
            )
            named = {f"head.{k}": x for k, x in by_head.items()}
            named |= {f"trunk.{k}": x for k, x in trunk_grads.items()}
            sums["critic_norm"] += norm_of(named)
            self.critic.step(named, rate, config.optimizer)

    def _adapt(self, kl, num_rows) -> None:
        if self.config.kl.target is not None:
            error = min(max(kl / self.config.kl.target - 1, -0.2), 0.2)
            self.kl_coeff *= 1 + error * num_rows / self.config.kl.horizon


class _as_numpy:
    """A trajectory's arrays; turn totals are 0 where not played."""

    def __init__(self, trajectory):
        lengths = np.asarray(trajectory.lengths)[:, None]
        is_token = np.arange(trajectory.tokens.shape[1])[None] < lengths
        self.tokens = np.where(is_token, trajectory.tokens, 0)
        self.mask = np.asarray(trajectory.loss_mask)
        self.sampled = np.asarray(trajectory.sample_log_probs, np.float64)
        self.turn_index = np.asarray(trajectory.turn_index)
        turns = trajectory.turns
        played = np.asarray(turns.played)
        rewards, penalties, bonuses = (
            np.where(played, np.asarray(x, np.float64), 0.0)
            for x in (turns.reward, turns.penalty, turns.bonus)
        )
        self.raw = [float(x) for x in rewards.sum(axis=1)]
        self.turn_totals = (rewards + penalties + bonuses).tolist()
        self.states = [
            [tuple(int(x) for x in pair) for pair in row]
            for row in np.asarray(turns.state_hash)
        ]


def choose(config, rows, entropies):
    """Kept rows, the groups' scores and the factor on the advantages."""
    keep, size = config.filter, config.rollout.group_size
    mask = rows.mask.tolist()
    scores = {
        "length": lambda: filters.length(mask, size),
        "entropy": lambda: filters.entropy(mask, entropies.tolist(), size),
        "entropy_std": lambda: filters.entropy_std(mask, entropies.tolist(), size),
    }.get(keep.score, lambda: getattr(filters, keep.score)(rows.raw, size))()
    order = scores, keep.direction, keep.keep_zero
    if keep.rule == "within_group":
        candidates = filters.queue(*order)
        kept = np.concatenate(
            [
                extremes(group, keep.rows_per_group) & (g in candidates)
                for g, group in enumerate(filters.groups_of(rows.raw, size))
            ]
        )
    else:
        chosen = {
            "top_fraction": lambda: filters.top_fraction(*order, keep.keep_fraction),
            "top_k": lambda: filters.top_k(*order, keep.top_k),
            "top_p": lambda: filters.top_p(*order, keep.top_p, keep.top_p_epsilon),
            "top_p_softmax": lambda: filters.top_p_softmax(*order, keep.top_p),
            "min_p": lambda: filters.min_p(*order, keep.min_p),
            "quantile_band": lambda: filters.quantile_band(
                scores, keep.keep_zero, keep.quantile_low, keep.quantile_high
            ),
        }[keep.rule]()
        kept = np.repeat([g in chosen for g in range(len(scores))], size)
    ratio = kept.reshape(-1, size).any(axis=1).mean()
    scale = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio), "rho": keep.top_p}
    return kept, scores, scale[keep.loss_scale]


def extremes(group: list[float], count: int) -> np.ndarray:
    """Of the ways to take the j lowest and the other highest, the most varied."""
    order = sorted(range(len(group)), key=lambda i: group[i])
    ways = [
        order[:j] + order[len(group) - count + j :]
        for j in range(min(count, len(group)) + 1)
    ]
    best = max(ways, key=lambda way: np.var([group[i] for i in way]))
    return np.isin(np.arange(len(group)), best)


def assign(config, rows, mask, old, ref, values, scale, kl_coeff) -> dict:
    """Advantages, returns and the mean KL that rewards were charged for."""
    algo, size = config.algo, config.rollout.group_size
    present = [bool(x) for x in mask.any(axis=1)]
    totals = [sum(numbers) for numbers in rows.turn_totals]
    if algo.reward_placement == "turn":
        placed = rewards_of.at_turn_ends(rows.turn_totals, mask, rows.turn_index)
    else:
        labels = [
            0 if algo.grouping == "batch" else i // size for i in range(len(mask))
        ]
        totals = rewards_of.normalize(totals, labels, present, algo.normalization)
        placed = rewards_of.at_episode_end(totals, mask)
    kl = 0.0
    if config.kl.placement == "reward":
        charged = np.zeros(mask.shape)
        for i, t in zip(*np.nonzero(mask), strict=True):
            charged[i, t] = losses.kl(config.kl.estimator, old[i, t], ref[i, t])
        placed, kl = placed - kl_coeff * charged, charged[mask].mean()
    scores = [float(placed[i][mask[i]].sum()) for i in range(len(mask))]
    result = estimate(algo, rows, mask, placed, scores, values, size)
    result, returns = result if isinstance(result, tuple) else (result, None)
    if algo.weigh_groups:
        weights = rewards_of.group_std_weights(scores, present, size)
        result = result * np.asarray(weights)[:, None]
    result = result * scale
    if algo.weigh_lengths:
        lengths = [int(n) for n in mask.sum(axis=1)]
        result = result * np.asarray(rewards_of.length_weights(lengths))[:, None]
    if algo.zero_task:
        result = 0 * result
    return {"advantages": result, "returns": returns, "kl": kl}


def estimate(algo, rows, mask, placed, scores, values, size):
    """The estimator of that name."""
    name, function = algo.advantage, getattr(advantages, algo.advantage)
    turns = mask, rows.turn_index
    if name in ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline"):
        return function(scores, size, mask)
    if name in ("reinforce", "reinforce_plus_plus"):
        return function(placed, mask, algo.gamma)
    if name == "gae":
        return function(placed, values, mask, algo.gamma, algo.lam)
    if name == "bi_level_gae":
        levels = algo.gamma, algo.lam, algo.high_level_gamma
        return function(placed, values, *turns, *levels)
    settings = {"gamma": algo.gamma, "step_weight": algo.step_weight}
    states = rows.turn_totals, rows.states
    return function(scores, *states, *turns, group_size=size, **settings)


def minibatches(config, kept, key):
    """Indices of the rows of every optimizer step."""
    size = config.learner.minibatch_rows
    for epoch in range(config.learner.epochs):
        draws = np.asarray(
            jax.random.uniform(jax.random.fold_in(key, epoch), kept.shape)
        )
        order = sorted(np.flatnonzero(kept), key=lambda row: draws[row])
        for start in range(0, len(order), size):
            yield np.asarray(order[start : start + size])


def token_weights(aggregation, mask):
    """(row, token) and weight of each trained token of a minibatch."""
    lengths = mask.sum(axis=1)
    num_rows = int((lengths > 0).sum())
    for i, t in zip(*np.nonzero(mask), strict=True):
        yield (
            (i, t),
            {
                "token_mean": 1 / lengths.sum(),
                "seq_mean_token_mean": 1 / (num_rows * lengths[i]),
                "seq_mean_token_sum": 1 / num_rows,
                "seq_mean_token_sum_norm": 1 / (num_rows * mask.shape[1]),
            }[aggregation],
        )


def policy_loss(settings, token, row) -> tuple[float, float]:
    """Loss of a token and its derivative by the token's own log-probability."""
    new, old, advantage = (float(x) for x in token)
    clips = settings.clip_low, settings.clip_high
    if settings.policy == "cispo":
        loss, _, slope = losses.cispo(new, old, advantage, *clips)
        return loss, slope
    ratio, dual_clip = losses.ratio(new, old), settings.dual_clip
    if settings.policy == "gspo":
        ratio, dual_clip = losses.sequence_ratio(*(x.tolist() for x in row)), None
    loss, is_clipped = losses.clipped_policy_loss(ratio, advantage, *clips, dual_clip)
    return loss, 0.0 if is_clipped else -advantage * ratio


def value_loss_of(value, old, target, clip_value) -> tuple[float, float]:
    """The critic's loss at a token and its derivative by the value."""
    if clip_value is None:
        return (value - target) ** 2 / 2, value - target
    loss, is_clipped = losses.clipped_value_loss(value, old, target, clip_value)
    return loss, 0.0 if is_clipped else value - target


def learning_rate(schedule, highest, update) -> float:
    """Of the update of that number, from 0."""
    warmup, end = schedule.warmup_updates, schedule.decay_updates
    rise = min(1.0, (update + 1) / (warmup + 1))
    if schedule.shape == "constant":
        return highest * rise
    share = min(max((update - warmup) / (end - warmup), 0.0), 1.0)
    left = 1 - share
    if schedule.shape == "cosine":
        left = (1 + math.cos(math.pi * share)) / 2
    return (
        highest
        * rise
        * (schedule.final_fraction + (1 - schedule.final_fraction) * left)
    )


def explained(credit, values, mask) -> float:
    """Share of the returns' variance that the values knew."""
    returns, error = (x[mask] for x in (credit["returns"], credit["returns"] - values))
    return 1 - np.var(error, ddof=1) / (np.var(returns, ddof=1) + 1e-5)
