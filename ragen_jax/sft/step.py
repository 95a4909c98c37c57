"""One step of fine-tuning: play demonstrations, take one optimizer step on them.

In: a train state, a draw of episodes and a mixture of demonstrators. Out: the next
state and metrics, from one compiled program. Reads no files and no configuration.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from ragen_jax.learner.logprobs import hidden_states, map_chunks
from ragen_jax.learner.state import Network, TrainState, state_shardings
from ragen_jax.models.policy import Policy
from ragen_jax.models.trainable import Trainable
from ragen_jax.models.widths import at_width
from ragen_jax.registry.metrics import Metric, View
from ragen_jax.sft.data import Batch
from ragen_jax.types import Params

# Metrics of a step, for the console; `{env}` is a task.
_CONSOLE = functools.partial(View, title="Fine-tuning")
METRICS = (
    Metric(
        "loss",
        "mean loss, nats per reply token",
        section="sft",
        views=(_CONSOLE(console="loss"),),
    ),
    Metric(
        "accuracy",
        "share of the reply tokens that are the policy's most likely ones",
        section="sft",
        kind="share",
        views=(_CONSOLE(console="accuracy"),),
    ),
    Metric("tokens", "reply tokens of the step", section="sft"),
    Metric(
        "demonstrated/{env}",
        "success of the demonstrators",
        section="sft",
        kind="share",
        views=(_CONSOLE(console="demonstrators"),),
    ),
)


def build_optimizer(
    num_steps: int,
    *,
    learning_rate: float,
    warmup_steps: int,
    final_fraction: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    max_grad_norm: float,
    decays: Callable[[Params], PyTree] | None = None,
) -> optax.GradientTransformation:
    """Gradient clipping, AdamW, linear warm-up from 0 and cosine decay.

    Unlike the learner's optimizer it contains its schedule, and so do its checkpoints.
    `decays`: see `learner.state.build_optimizer`.
    """
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, learning_rate, warmup_steps, num_steps, learning_rate * final_fraction
    )
    return optax.chain(
        optax.clip_by_global_norm(max_grad_norm),
        optax.adamw(
            schedule, b1=beta1, b2=beta2, weight_decay=weight_decay, mask=decays
        ),
    )


def make_step(
    trainable: Trainable,
    optimizer: optax.GradientTransformation,
    demonstrate: Callable,
    description: TrainState,
    *,
    microbatch_episodes: int,
    num_widths: int,
    logprob_chunk_tokens: int | None,
    prompt_loss_weight: float,
) -> Callable[..., tuple[TrainState, dict[str, Array]]]:
    """Build the compiled `step(frozen, state, draws, mixture, dialogues, data)`.

    It returns the next state and the `METRICS`. The state is donated.

    Args:
      trainable: the part of the network that is trained; `frozen` is the rest.
      optimizer: see `build_optimizer`.
      demonstrate: see `make_demonstrate`; its arguments follow the state.
      description: of the state, with shardings.
      microbatch_episodes, num_widths, logprob_chunk_tokens, prompt_loss_weight: see
        `batch_gradient`.
    """

    def step(frozen: Params | None, state: TrainState, *demonstrations):
        batch, success = demonstrate(*demonstrations)
        gradient, metrics = batch_gradient(
            trainable.policy,
            lambda trained: trainable.params(trained, frozen),
            state.params,
            batch,
            microbatch_episodes=microbatch_episodes,
            num_widths=num_widths,
            logprob_chunk_tokens=logprob_chunk_tokens,
            prompt_loss_weight=prompt_loss_weight,
        )
        old = state.policy
        updates, opt_state = optimizer.update(gradient, old.opt_state, old.params)
        state = state.replace(
            policy=Network(optax.apply_updates(old.params, updates), opt_state),
            iteration=state.iteration + 1,
            num_updates=state.num_updates + 1,
        )
        metrics |= {f"demonstrated/{name}": rate for name, rate in success.items()}
        return state, metrics

    # The result has the layout of the argument, or the second call would compile again.
    layout = (state_shardings(description), None)
    return jax.jit(step, donate_argnums=1, out_shardings=layout)


def batch_gradient(
    policy: Policy,
    complete: Callable[[Params], Params],
    trained: Params,
    batch: Batch,
    *,
    microbatch_episodes: int,
    num_widths: int,
    logprob_chunk_tokens: int | None,
    prompt_loss_weight: float = 0.0,
) -> tuple[Params, dict[str, Float[Array, ""]]]:
    """Gradient of the batch's mean loss per token, and metrics of its reply tokens.

    Episodes are sorted by length and split into microbatches, each padded to the
    shortest of `num_widths` widths that holds it: padding costs as much as text.

    Args:
      policy: the network.
      complete: (trained parameters) -> all parameters of the network.
      trained: the parameters to differentiate with respect to.
      batch: a multiple of `microbatch_episodes` episodes.
      microbatch_episodes: episodes per forward and backward pass.
      num_widths: passes to compile, each of another width.
      logprob_chunk_tokens: see `dialogue_loss`.
      prompt_loss_weight: weight of tokens outside replies; that of reply tokens is 1.
    """
    policy, batch = policy.shown(batch.images), batch.replace(images=None)
    _, max_tokens = batch.tokens.shape
    order = jnp.argsort(batch.lengths)
    chunks = jax.tree.map(
        lambda x: x[order].reshape(-1, microbatch_episodes, *x.shape[1:]), batch
    )

    def chunk_loss(trained, chunk: Batch):
        return dialogue_loss(
            policy,
            complete(trained),
            chunk,
            prompt_weight=prompt_loss_weight,
            chunk_tokens=logprob_chunk_tokens,
        )

    def cut_gradient(chunk: Batch):
        return jax.grad(chunk_loss, has_aux=True)(trained, chunk)

    def add(sums, chunk: Batch):
        new = at_width(
            cut_gradient, chunk, chunk.lengths, longest=max_tokens, count=num_widths
        )
        return jax.tree.map(jnp.add, sums, new), None

    zeros = (jax.tree.map(jnp.zeros_like, trained), LossSums(*jnp.zeros(3)))
    (gradient, sums), _ = jax.lax.scan(add, zeros, chunks)
    count = jnp.maximum(jnp.sum(batch.loss_mask[:, 1:]), 1)
    num_replied = count.astype(jnp.float32)
    gradient = jax.tree.map(lambda x: x / jnp.maximum(sums.weight, 1), gradient)
    loss, accuracy = sums.loss / num_replied, sums.hits / num_replied
    return gradient, {"loss": loss, "accuracy": accuracy, "tokens": count}


class LossSums(NamedTuple):
    """Sums over the tokens of a batch.

    Attributes:
      loss, hits: cross-entropy of reply tokens, and how many were most likely.
      weight: of all tokens in the loss.
    """

    loss: Float[Array, ""]
    hits: Float[Array, ""]
    weight: Float[Array, ""]


def dialogue_loss(
    policy: Policy,
    params: Params,
    batch: Batch,
    *,
    prompt_weight: float,
    chunk_tokens: int | None,
) -> tuple[Float[Array, ""], LossSums]:
    """Weighted sum of the tokens' cross-entropy, and sums over the batch.

    Args:
      prompt_weight: of tokens outside replies.
      chunk_tokens: number of tokens whose logits exist at a time; the backward pass
        computes them again. None: all logits at once, faster for small vocabularies.
    """
    hidden = hidden_states(policy, params, batch.tokens[:, :-1])
    targets, is_reply = batch.tokens[:, 1:], batch.loss_mask[:, 1:]
    places = jnp.arange(1, batch.tokens.shape[1])
    is_there = places[None] < batch.lengths[:, None]
    weights = jnp.where(is_reply, 1.0, jnp.where(is_there, prompt_weight, 0.0))

    def head(hidden, targets):
        logits = policy.logits(params, hidden)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        is_hit = jnp.argmax(logits, axis=-1) == targets
        return losses, is_hit.astype(jnp.float32)

    if chunk_tokens is None:
        losses, is_hit = head(hidden, targets)
    else:
        losses, is_hit = map_chunks(
            head, hidden, targets, weights > 0, chunk_tokens=chunk_tokens
        )
    sums = LossSums(
        loss=jnp.sum(jnp.where(is_reply, losses, 0.0)),
        hits=jnp.sum(jnp.where(is_reply, is_hit, 0.0)),
        weight=jnp.sum(weights),
    )
    return jnp.sum(weights * losses), sums
