"""Optimizers and learning rates.

Gradients become AdamW's directions here; the learning rate is applied by the update,
which counts the updates. Rates follow updates, not optimizer steps: how many steps an
update takes depends on what the filter keeps.
"""

from collections.abc import Callable

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

Schedule = Callable[[Int[Array, ""]], Float[Array, ""]]


def build_optimizer(
    *, beta1: float, beta2: float, weight_decay: float, max_grad_norm: float
) -> optax.GradientTransformation:
    """Gradient clipping by global norm, then AdamW (arXiv 1711.05101) at rate 1.

    Weights decay everywhere, biases and norm scales included, as in RAGEN: at its
    learning rates the decay is too weak for exceptions to matter.

    Args:
      beta1, beta2: decay of the first and second moment.
      weight_decay: decoupled; the learning rate multiplies it, too.
      max_grad_norm: global norm above which the gradient is scaled down.
    """
    return optax.chain(
        optax.clip_by_global_norm(max_grad_norm),
        optax.scale_by_adam(b1=beta1, b2=beta2),
        optax.add_decayed_weights(weight_decay),
    )


def build_schedule(
    *,
    learning_rate: float,
    shape: str,
    warmup_updates: int,
    decay_updates: int | None,
    final_fraction: float,
) -> Schedule:
    """The learning rate of an update (from 0).

    Args:
      learning_rate: the highest.
      shape: entry of `SCHEDULES`, the way down after the warm-up.
      warmup_updates: updates of a linear rise before it; the first of them already
        trains at a share of the rate.
      decay_updates: update at which `final_fraction` is reached, counted from the start
        of the run. None with "constant".
      final_fraction: of `learning_rate`, from then on.
    """
    decay = SCHEDULES[shape]

    def rate(update: Int[Array, ""]) -> Float[Array, ""]:
        done = update.astype(jnp.float32)
        rise = jnp.minimum((done + 1) / (warmup_updates + 1), 1.0)
        fall = 1.0
        if decay_updates is not None:
            length = max(decay_updates - warmup_updates, 1)
            share = jnp.clip((done - warmup_updates) / length, 0.0, 1.0)
            fall = final_fraction + (1 - final_fraction) * decay(share)
        return jnp.asarray(learning_rate * rise * fall, jnp.float32)

    return rate


def constant(share: Float[Array, ""]) -> Float[Array, ""]:
    """No decay."""
    return jnp.ones_like(share)


def linear(share: Float[Array, ""]) -> Float[Array, ""]:
    """A straight line down."""
    return 1 - share


def cosine(share: Float[Array, ""]) -> Float[Array, ""]:
    """Half a cosine down (arXiv 1608.03983)."""
    return 0.5 * (1 + jnp.cos(jnp.pi * share))


SCHEDULES = {"constant": constant, "linear": linear, "cosine": cosine}
