"""Log-probabilities from whole batches of logits, and AdamW by hand."""

import jax
import jax.numpy as jnp
import numpy as np


def naive_log_probs(policy, params, tokens, temperature):
    positions = jnp.tile(jnp.arange(tokens.shape[1])[None], (tokens.shape[0], 1))
    hidden, _ = policy.forward(params, tokens, positions, None)
    probs = jax.nn.softmax(policy.logits(params, hidden) / temperature)
    chosen = jnp.sum(probs[:, :-1] * jax.nn.one_hot(tokens[:, 1:], probs.shape[-1]), -1)
    entropy = -jnp.sum(probs[:, :-1] * jnp.log(probs[:, :-1]), -1)
    front = [(0, 0), (1, 0)]
    return jnp.pad(jnp.log(chosen), front), jnp.pad(entropy, front)


def adamw(params, first, second, name, grad, step, optimizer) -> None:
    """One step of arXiv 1711.05101 algorithm 2 on one array, in place."""
    beta1, beta2 = optimizer["beta1"], optimizer["beta2"]
    first[name] = beta1 * first[name] + (1 - beta1) * grad
    second[name] = beta2 * second[name] + (1 - beta2) * grad**2
    mean = first[name] / (1 - beta1**step)
    spread = np.sqrt(second[name] / (1 - beta2**step))
    change = mean / (spread + 1e-8) + optimizer["weight_decay"] * params[name]
    params[name] = params[name] - optimizer["learning_rate"] * change
