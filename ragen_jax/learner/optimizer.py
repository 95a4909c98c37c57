"""The optimizer: clipped gradients into AdamW at a constant learning rate."""

import optax


def build_optimizer(
    *,
    learning_rate: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    max_grad_norm: float,
) -> optax.GradientTransformation:
    """Gradient clipping by global norm, then AdamW (arXiv 1711.05101).

    Weights decay everywhere, biases and norm scales included, as in RAGEN: at its
    learning rates the decay is too weak for exceptions to matter.

    Args:
      learning_rate: constant.
      beta1, beta2: decay of the first and second moment.
      weight_decay: decoupled, multiplied by the learning rate.
      max_grad_norm: global norm above which the gradient is scaled down.
    """
    return optax.chain(
        optax.clip_by_global_norm(max_grad_norm),
        optax.adamw(learning_rate, b1=beta1, b2=beta2, weight_decay=weight_decay),
    )
