"""What networks say of every token, without the logits of every token.

In: a network, its parameters and whole rows of tokens. Out: float32 numbers per token,
differentiable. The output head runs over chunks of positions, and again in the backward
pass, so that of the `[b, T, V]` logits only one chunk exists at a time.

Index `t` speaks of the moment at which token `t` was drawn, with the tokens before it
read. Index 0, which nothing precedes, is 0.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jaxtyping import Array, Float, Int, Shaped

from ragen_jax.models.critic import Critic
from ragen_jax.models.qwen2 import Policy
from ragen_jax.types import Params


def hidden_states(
    policy: Policy,
    params: Params,
    tokens: Int[Array, "b T"],
    row_sharding: NamedSharding | None = None,
) -> Float[Array, "b T D"]:
    """The last hidden state after each token.

    Args:
      policy, params: the network.
      tokens: rows from their first token on; what stands behind a row's last token has
        no influence on what stands before.
      row_sharding: where rows live; None leaves it to the compiler. On a mesh that
        splits rows, parameters and heads at once XLA's partitioner loses a sum over
        devices in the backward pass unless it is told (openxla/xla#40034).
    """
    order = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    positions = jnp.broadcast_to(order, tokens.shape)
    hidden, _ = policy.forward(params, tokens, positions, None)
    if row_sharding is not None:
        hidden = jax.lax.with_sharding_constraint(hidden, row_sharding)
    return hidden


def token_log_probs(
    policy: Policy,
    params: Params,
    hidden: Float[Array, "b T D"],
    tokens: Int[Array, "b T"],
    *,
    temperature: float,
    chunk_tokens: int,
) -> tuple[Float[Array, "b T"], Float[Array, "b T"]]:
    """Log-probability of each token given those before it, and the entropy there.

    Args:
      policy, params: the network.
      hidden: its hidden states, see `hidden_states`.
      tokens: the rows.
      temperature: of the sampler; logits are divided by it.
      chunk_tokens: logits that exist at a time, counted in tokens (at least one
        position of every row).

    Returns:
      Log-probabilities and entropies (nats), float32.
    """

    def head(hidden_chunk, targets):
        logits = policy.logits(params, hidden_chunk).astype(jnp.float32) / temperature
        log_softmax = jax.nn.log_softmax(logits)
        chosen = jnp.take_along_axis(log_softmax, targets[..., None], axis=-1)
        entropy = -jnp.sum(jnp.exp(log_softmax) * log_softmax, axis=-1)
        return chosen[..., 0], entropy

    read = map_chunks(head, hidden[:, :-1], tokens[:, 1:], chunk_tokens=chunk_tokens)
    log_probs, entropy = (jnp.pad(x, [(0, 0), (1, 0)]) for x in read)
    return log_probs, entropy


def map_chunks(
    head: Callable,
    hidden: Float[Array, "b n D"],
    targets: Int[Array, "b n"],
    *,
    chunk_tokens: int,
) -> tuple[Shaped[Array, "b n"], ...]:
    """`head` of every position, a chunk at a time, and again in the backward pass.

    Args:
      head: (hidden[b, c, D], targets[b, c]) -> a tuple of arrays [b, c].
      hidden, targets: what it reads.
      chunk_tokens: positions of a chunk, those of all rows counted (at least one
        position of every row).
    """
    num_rows, num_positions = targets.shape
    # Chunks run along the rows, so that rows on different devices stay there.
    chunk = min(max(1, chunk_tokens // num_rows), num_positions)
    num_chunks = -(-num_positions // chunk)
    padding = num_chunks * chunk - num_positions

    def split(x):
        x = jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(num_rows, num_chunks, chunk, *x.shape[2:]), 1, 0)

    def join(x):
        x = jnp.moveaxis(x, 0, 1).reshape(num_rows, num_chunks * chunk)
        return x[:, :num_positions]

    head = jax.checkpoint(head)
    chunks = jax.lax.map(lambda pair: head(*pair), (split(hidden), split(targets)))
    return tuple(join(x) for x in chunks)


def token_values(
    critic: Critic, params: Params, hidden: Float[Array, "b T D"]
) -> Float[Array, "b T"]:
    """The critic's value at the moment each token is drawn.

    Args:
      critic, params: the critic.
      hidden: states that its head reads: its own trunk's, or the policy's.
    """
    return jnp.pad(critic.values(params, hidden[:, :-1]), [(0, 0), (1, 0)])
