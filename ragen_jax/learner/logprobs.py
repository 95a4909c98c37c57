"""Per-token log-probabilities, entropies and values; the output head runs in chunks.

In: a network, its parameters and whole rows of tokens. Out: float32 numbers per token,
differentiable. The output head runs over chunks of the selected tokens, and again in
the backward pass, so that only one chunk of the `[b, T, V]` logits exists at a time.

Index `t` holds the numbers of the distribution that token `t` was drawn from, given the
tokens before it. Index 0, which nothing precedes, is 0.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jaxtyping import Array, Bool, Float, Int, Shaped

from ragen_jax.models.critic import Critic
from ragen_jax.models.kv_cache import PromptRows
from ragen_jax.models.policy import Policy
from ragen_jax.registry.numbers import Number
from ragen_jax.types import Params, TokenSpan


def hidden_states(
    policy: Policy,
    params: Params,
    tokens: Int[Array, "b T"],
    row_sharding: NamedSharding | None = None,
    prompts: TokenSpan | None = None,
) -> Float[Array, "b T D"]:
    """The last hidden state after each token.

    Args:
      policy, params: the network.
      tokens: rows from their first token on; what follows a row's last token does
        not influence what precedes it.
      row_sharding: where rows live; None leaves it to the compiler. On a mesh that
        splits rows, parameters and heads at once XLA's partitioner loses a sum over
        devices in the backward pass without this constraint (openxla/xla#40034).
      prompts: what precedes the rows, which then do not begin with their first token.
        Each is read once, for equally many adjacent rows. None: nothing.
    """
    order = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    if prompts is None:
        positions = jnp.broadcast_to(order, tokens.shape)
        hidden, _ = policy.forward(params, tokens, positions, None)
    else:
        hidden = _after_prompts(policy, params, tokens, order, prompts)
    if row_sharding is not None:
        hidden = jax.lax.with_sharding_constraint(hidden, row_sharding)
    return hidden


def _after_prompts(policy, params, tokens, order, prompts) -> Float[Array, "b T D"]:
    num_prompts, prompt_tokens = prompts.tokens.shape
    num_rows = tokens.shape[0] // num_prompts
    layout = PromptRows(prompts.length, prompt_tokens, num_rows)
    in_prompts = jnp.arange(prompt_tokens, dtype=jnp.int32)[None]
    positions = layout.join(
        jnp.broadcast_to(in_prompts, prompts.tokens.shape),
        jnp.repeat(prompts.length, num_rows)[:, None] + order,
    )
    lines = layout.join(prompts.tokens, tokens)
    hidden, _ = policy.forward(params, lines, positions, layout)
    return layout.split(hidden)[1]


def token_log_probs(
    policy: Policy,
    params: Params,
    hidden: Float[Array, "b T D"],
    tokens: Int[Array, "b T"],
    mask: Bool[Array, "b T"] | None = None,
    *,
    temperature: Number,
    chunk_tokens: int,
) -> tuple[Float[Array, "b T"], Float[Array, "b T"]]:
    """Log-probability of each token given those before it, and the entropy there.

    Args:
      policy, params: the network.
      hidden: its hidden states, see `hidden_states`.
      tokens: the rows.
      mask: selected tokens; the others' numbers are 0 and cost nothing. None: all.
      temperature: of the sampler; logits are divided by it.
      chunk_tokens: logits that exist at a time, counted in tokens.

    Returns:
      Log-probabilities and entropies (nats), float32.
    """

    def head(hidden_chunk, targets):
        logits = policy.logits(params, hidden_chunk).astype(jnp.float32) / temperature
        log_softmax = jax.nn.log_softmax(logits)
        # Cells of pictures, never selected, are ids beyond the vocabulary.
        targets = jnp.minimum(targets, logits.shape[-1] - 1)[..., None]
        chosen = jnp.take_along_axis(log_softmax, targets, axis=-1)
        entropy = -jnp.sum(jnp.exp(log_softmax) * log_softmax, axis=-1)
        return chosen[..., 0], entropy

    if mask is not None:
        mask = mask[:, 1:]
    # The state after token t - 1 is what token t was drawn from.
    columns = map_chunks(
        head, hidden[:, :-1], tokens[:, 1:], mask, chunk_tokens=chunk_tokens
    )
    log_probs, entropy = (jnp.pad(x, [(0, 0), (1, 0)]) for x in columns)
    return log_probs, entropy


def map_chunks(
    head: Callable,
    hidden: Float[Array, "b n D"],
    targets: Int[Array, "b n"],
    mask: Bool[Array, "b n"] | None = None,
    *,
    chunk_tokens: int,
) -> tuple[Float[Array, "b n"], ...]:
    """`head` of selected positions, a chunk at a time, and again in the backward pass.

    Selected positions come first, and only as many chunks as they fill are computed:
    the cost of the head follows their number, which is data here, not a shape.

    Args:
      head: (hidden[c, D], targets[c]) -> a tuple of float arrays [c].
      hidden, targets: its arguments, at all positions.
      mask: selected positions; 0 is returned for the others. None: all.
      chunk_tokens: positions of a chunk.
    """
    num_tokens = targets.size
    chunk = min(max(1, chunk_tokens), num_tokens)
    num_chunks = -(-num_tokens // chunk)
    padding = num_chunks * chunk - num_tokens
    used = num_chunks

    def flatten(x):
        flat = x.reshape(num_tokens, *x.shape[2:])
        return jnp.pad(flat, [(0, padding)] + [(0, 0)] * (flat.ndim - 1))

    flat_hidden, flat_targets = flatten(hidden), flatten(targets)
    if mask is not None:
        order = jnp.argsort(~flatten(mask), stable=True)
        places = jnp.argsort(order)
        used = -(-jnp.sum(mask) // chunk)
        flat_hidden = _permute(flat_hidden, order, places)
        flat_targets = flat_targets[order]
    columns = _map_first(head, used, chunk, flat_hidden, flat_targets)
    if mask is not None:
        columns = tuple(_permute(x, places, order) for x in columns)
        # The last chunk may hold positions off the mask.
        columns = tuple(jnp.where(flatten(mask), x, 0.0) for x in columns)
    return tuple(x[:num_tokens].reshape(targets.shape) for x in columns)


def _map_first(
    head: Callable,
    used: Int[Array, ""] | int,
    chunk: int,
    hidden: Float[Array, "n D"],
    targets: Int[Array, " n"],
) -> tuple[Float[Array, " n"], ...]:
    """`head` of the first `used` chunks; 0 after them, without a gradient.

    A custom gradient, because autodiff would keep every chunk's logits for the
    backward pass and cannot differentiate a loop whose length is data.
    """
    like = jax.eval_shape(head, hidden[:chunk], targets[:chunk])
    # Parameters inside the closure become arguments: they need gradients, too.
    head, closed_over = jax.closure_convert(head, hidden[:chunk], targets[:chunk])

    def take(x, i):
        return jax.lax.dynamic_slice_in_dim(x, i * chunk, chunk)

    def put(x, part, i):
        return jax.lax.dynamic_update_slice_in_dim(x, part, i * chunk, 0)

    @jax.custom_vjp
    def run(closed_over, hidden, targets, used):
        def step(i, columns):
            new = head(take(hidden, i), take(targets, i), *closed_over)
            return tuple(put(x, part, i) for x, part in zip(columns, new, strict=True))

        start = tuple(jnp.zeros(targets.shape, x.dtype) for x in like)
        return jax.lax.fori_loop(0, used, step, start)

    def forward(*arguments):
        return run(*arguments), arguments

    def backward(arguments, cotangents):
        closed_over, hidden, targets, used = arguments

        def step(i, sums):
            of_closed_over, of_hidden = sums

            def head_of(closed_over, part):
                return head(part, take(targets, i), *closed_over)

            _, pull = jax.vjp(head_of, closed_over, take(hidden, i))
            more, part = pull(tuple(take(x, i) for x in cotangents))
            of_closed_over = jax.tree.map(jnp.add, of_closed_over, more)
            return of_closed_over, put(of_hidden, part, i)

        zeros = jax.tree.map(jnp.zeros_like, (closed_over, hidden))
        return *jax.lax.fori_loop(0, used, step, zeros), None, None

    run.defvjp(forward, backward)
    return run(closed_over, hidden, targets, used)


@jax.custom_vjp
def _permute(
    x: Shaped[Array, "n *w"], order: Int[Array, " n"], inverse: Int[Array, " n"]
) -> Shaped[Array, "n *w"]:
    """`x[order]`, whose gradient is gathered: autodiff would scatter it, row by row.

    On CPUs an update takes 1.08 of the time where rows are scattered, also where each
    chunk takes its rows by index.
    """
    return x[order]


_permute.defvjp(
    lambda x, order, inverse: (x[order], inverse),
    lambda inverse, cotangent: (cotangent[inverse], None, None),
)


def token_values(
    critic: Critic, params: Params, hidden: Float[Array, "b T D"]
) -> Float[Array, "b T"]:
    """The critic's value at the moment each token is drawn.

    Args:
      critic, params: the critic.
      hidden: states of its trunk, or of the policy's if they share one.
    """
    return jnp.pad(critic.values(params, hidden[:, :-1]), [(0, 0), (1, 0)])
