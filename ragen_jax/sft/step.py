"""The step of the warm start: play demonstrations, learn the replies.

In: a train state, a draw of episodes and a mixture of demonstrators. Out: the state
after one optimizer step on those episodes, compiled as one program. Knows no files and
no configuration.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from ragen_jax.learner.logprobs import map_chunks
from ragen_jax.learner.state import Network, TrainState
from ragen_jax.models.policy import Policy
from ragen_jax.models.trainable import Trainable
from ragen_jax.sft.data import Batch
from ragen_jax.types import Params

# A microbatch is computed at the shortest of this many lengths that holds it.
NUM_WIDTHS = 5


def make_step(
    trainable: Trainable,
    optimizer: optax.GradientTransformation,
    demonstrate: Callable,
    *,
    microbatch_episodes: int,
    logprob_chunk_tokens: int | None,
) -> Callable[..., tuple[TrainState, dict[str, Array]]]:
    """Compiles `step(frozen, state, draws, mixture, dialogues) -> (state, stats)`.

    `frozen` is the part of the model that stays as it is. The state is donated.
    `stats`: `loss` in nats per reply token, `accuracy` of the most likely token,
    `tokens`, and `demonstrated/<game>`, the players' success.
    """

    def step(frozen: Params | None, state: TrainState, draws, mixture, dialogues):
        batch, success = demonstrate(draws, mixture, dialogues)
        gradient, stats = batch_gradient(
            trainable.policy,
            lambda trained: trainable.params(trained, frozen),
            state.params,
            batch,
            microbatch_episodes=microbatch_episodes,
            logprob_chunk_tokens=logprob_chunk_tokens,
        )
        old = state.policy
        updates, opt_state = optimizer.update(gradient, old.opt_state, old.params)
        state = state.replace(
            policy=Network(optax.apply_updates(old.params, updates), opt_state),
            iteration=state.iteration + 1,
            num_updates=state.num_updates + 1,
        )
        stats |= {f"demonstrated/{name}": rate for name, rate in success.items()}
        return state, stats

    return jax.jit(step, donate_argnums=1)


def batch_gradient(
    policy: Policy,
    complete: Callable[[Params], Params],
    trained: Params,
    batch: Batch,
    *,
    microbatch_episodes: int,
    logprob_chunk_tokens: int | None,
) -> tuple[Params, dict[str, Float[Array, ""]]]:
    """Gradient of the mean loss per reply token of the whole batch, and `stats`.

    Episodes are sorted by length and taken a few at a time, each few at the shortest
    of `NUM_WIDTHS` widths that holds them: padding costs as much as text.

    Args:
      policy: the network.
      complete: what is trained -> the network's parameters.
      trained: with respect to which the gradient is.
      batch: a multiple of `microbatch_episodes` episodes.
      microbatch_episodes: episodes per forward and backward pass.
      logprob_chunk_tokens: see `reply_loss`.
    """
    _, max_tokens = batch.tokens.shape
    order = jnp.argsort(batch.lengths)
    chunks = jax.tree.map(
        lambda x: x[order].reshape(-1, microbatch_episodes, *x.shape[1:]), batch
    )
    widths = [-(-max_tokens * (i + 1) // NUM_WIDTHS) for i in range(NUM_WIDTHS)]

    def cut_gradient(width: int):
        def loss(trained, chunk: Batch):
            return reply_loss(
                policy,
                complete(trained),
                chunk.tokens[:, :width],
                chunk.loss_mask[:, :width],
                chunk_tokens=logprob_chunk_tokens,
            )

        def gradient(trained, chunk: Batch):
            differentiate = jax.value_and_grad(loss, has_aux=True)
            (total, hits), gradient = differentiate(trained, chunk)
            return gradient, total, hits

        return gradient

    branches = [cut_gradient(width) for width in widths]

    def add(sums, chunk: Batch):
        needed = jnp.searchsorted(jnp.array(widths), jnp.max(chunk.lengths))
        new = jax.lax.switch(needed, branches, trained, chunk)
        return jax.tree.map(jnp.add, sums, new), None

    zeros = (jax.tree.map(jnp.zeros_like, trained), jnp.float32(0), jnp.int32(0))
    (gradient, total, hits), _ = jax.lax.scan(add, zeros, chunks)
    count = jnp.maximum(jnp.sum(batch.loss_mask[:, 1:]), 1)
    gradient = jax.tree.map(lambda x: x / count, gradient)
    return gradient, {"loss": total / count, "accuracy": hits / count, "tokens": count}


def reply_loss(
    policy: Policy,
    params: Params,
    tokens: Int[Array, "B T"],
    loss_mask: Bool[Array, "B T"],
    *,
    chunk_tokens: int | None,
) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """Summed cross-entropy of the masked tokens, and how many were most likely.

    Args:
      chunk_tokens: tokens whose logits exist at a time; they are computed twice then.
        None: all logits at once, faster where the vocabulary is small.
    """
    num_rows, width = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(width - 1)[None], (num_rows, width - 1))
    hidden, _ = policy.forward(params, tokens[:, :-1], positions, None)
    targets, is_counted = tokens[:, 1:], loss_mask[:, 1:]

    def head(hidden, targets):
        logits = policy.logits(params, hidden)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        is_hit = jnp.argmax(logits, axis=-1) == targets
        return losses, is_hit.astype(jnp.float32)

    if chunk_tokens is None:
        losses, is_hit = head(hidden, targets)
    else:
        losses, is_hit = map_chunks(
            head, hidden, targets, is_counted, chunk_tokens=chunk_tokens
        )
    total = jnp.sum(jnp.where(is_counted, losses, 0.0))
    return total, jnp.sum(jnp.where(is_counted, is_hit, 0.0)).astype(jnp.int32)
