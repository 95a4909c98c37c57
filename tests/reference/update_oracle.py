"""One iteration of learning, slowly: whole batches of logits, AdamW by hand.

Nothing of the learner's is used but its policy's functions and, for the order of the
rows, its rule: kept rows by their draw from the epoch's key.
"""

import jax
import jax.numpy as jnp
import numpy as np

from tests.reference import advantages_oracle, filters_oracle


def naive_log_probs(policy, params, tokens, temperature):
    """Log-probability and entropy of every token from all logits at once."""
    positions = jnp.tile(jnp.arange(tokens.shape[1])[None], (tokens.shape[0], 1))
    hidden, _ = policy.forward(params, tokens, positions, None)
    probs = jax.nn.softmax(policy.logits(params, hidden) / temperature)
    chosen = jnp.sum(probs[:, :-1] * jax.nn.one_hot(tokens[:, 1:], probs.shape[-1]), -1)
    entropy = -jnp.sum(probs[:, :-1] * jnp.log(probs[:, :-1]), -1)
    front = [(0, 0), (1, 0)]
    return jnp.pad(jnp.log(chosen), front), jnp.pad(entropy, front)


def learn(policy, params, trajectory, key, config) -> tuple[dict, int]:
    """Parameters after one iteration, as NumPy arrays, and the steps it took."""
    loss_settings, optimizer = config.loss, config.optimizer
    temperature = config.rollout.temperature
    rewards = [float(r) for r in trajectory.turns.reward[:, 0]]
    size = config.rollout.group_size
    scores = filters_oracle.reward_std(rewards, size)
    chosen = filters_oracle.top_fraction(
        scores, "largest", True, config.filter.keep_fraction
    )
    kept = np.repeat([g in chosen for g in range(len(scores))], size)
    mask = np.asarray(trajectory.loss_mask)
    advantages = advantages_oracle.grpo(rewards, size, mask)
    sampled = trajectory.sample_log_probs
    old = sampled
    if loss_settings.old_log_probs == "learner":
        old, _ = naive_log_probs(policy, params, trajectory.tokens, temperature)

    def loss(params, rows):
        log_probs, entropy = naive_log_probs(
            policy, params, trajectory.tokens[rows], temperature
        )
        ratio = jnp.exp(log_probs - old[rows])
        bounded = jnp.clip(
            ratio, 1 - loss_settings.clip_low, 1 + loss_settings.clip_high
        )
        gain = jnp.minimum(ratio * advantages[rows], bounded * advantages[rows])
        worst = loss_settings.dual_clip * advantages[rows]
        gain = jnp.where(advantages[rows] < 0, jnp.maximum(gain, worst), gain)
        if loss_settings.importance_cap is not None:
            weight = jnp.exp(old[rows] - sampled[rows])
            gain = gain * jnp.minimum(weight, loss_settings.importance_cap)
        gain = gain + loss_settings.entropy_coeff * entropy
        return -jnp.mean(gain, where=mask[rows])

    mask = jnp.asarray(mask)
    advantages = jnp.asarray(advantages, jnp.float32)
    differentiate = jax.jit(jax.grad(loss))
    params = {name: np.asarray(x, np.float64) for name, x in params.items()}
    first = {name: np.zeros_like(x) for name, x in params.items()}
    second = {name: np.zeros_like(x) for name, x in params.items()}
    step = 0
    for epoch in range(config.learner.epochs):
        epoch_key = jax.random.fold_in(key, epoch)
        draws = np.asarray(jax.random.uniform(epoch_key, kept.shape))
        order = sorted(np.flatnonzero(kept), key=lambda row: draws[row])
        for start in range(0, len(order), config.learner.minibatch_rows):
            rows = np.asarray(order[start : start + config.learner.minibatch_rows])
            now = {k: jnp.asarray(x, jnp.float32) for k, x in params.items()}
            grads = differentiate(now, rows)
            grads = {name: np.asarray(x, np.float64) for name, x in grads.items()}
            norm = np.sqrt(sum((x**2).sum() for x in grads.values()))
            scale = min(1.0, optimizer["max_grad_norm"] / norm)
            step += 1
            for name, grad in grads.items():
                adamw(params, first, second, name, grad * scale, step, optimizer)
    return params, step


def adamw(params, first, second, name, grad, step, optimizer) -> None:
    """One step of arXiv 1711.05101 algorithm 2 on one array, in place."""
    beta1, beta2 = optimizer["beta1"], optimizer["beta2"]
    first[name] = beta1 * first[name] + (1 - beta1) * grad
    second[name] = beta2 * second[name] + (1 - beta2) * grad**2
    mean = first[name] / (1 - beta1**step)
    spread = np.sqrt(second[name] / (1 - beta2**step))
    change = mean / (spread + 1e-8) + optimizer["weight_decay"] * params[name]
    params[name] = params[name] - optimizer["learning_rate"] * change
