"""What a rollout does between two messages of a game, alone: read, then write."""

import functools
from collections.abc import Callable, Sequence


def make_write(
    policy,
    num_tokens: int,
    *,
    temperature: float,
    stop_tokens: Sequence[int],
    chunk_tokens: int,
    compactions: int | None = None,
) -> Callable:
    """`(params, prompts[B, T]) -> Reply`, compiled: a rollout's reading and writing."""
    import jax
    import jax.numpy as jnp

    from ragen_jax.models.kv_cache import init_cache
    from ragen_jax.rollout.decode import Context, Decoding, decode_reply, read
    from ragen_jax.rollout.sampling import sample
    from ragen_jax.types import TokenSpan

    sampler = functools.partial(sample, temperature=temperature, top_k=None, top_p=None)

    @jax.jit
    def write(params, prompts):
        rows, width = prompts.shape
        lengths = jnp.full(rows, width, jnp.int32)
        slots = width + num_tokens + 1
        context = Context(
            cache=init_cache(policy.config, rows, slots, policy.dtype),
            hidden=jnp.zeros((rows, policy.config.hidden_size), policy.dtype),
        )
        span = TokenSpan(tokens=prompts, length=lengths)
        context = read(policy, params, context, span, jnp.zeros_like(lengths))
        return decode_reply(
            policy,
            params,
            context,
            lengths,
            jnp.ones(rows, bool),
            jax.random.split(jax.random.key(0), rows),
            Decoding(
                sampler=sampler,
                stop_tokens=jnp.array(stop_tokens),
                max_reply_tokens=num_tokens,
                chunk_tokens=chunk_tokens,
                compactions=compactions,
            ),
        )[1]

    return write
