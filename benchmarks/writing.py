"""What a rollout does between two messages of a game, alone: read, then write."""

import functools
from collections.abc import Callable, Sequence


def read_prompts(policy, params, prompts, lengths, slots: int):
    """The `Context` after reading prompts [B, T] into a new cache of `slots` a row."""
    import jax.numpy as jnp

    from ragen_jax.models.kv_cache import init_cache
    from ragen_jax.rollout.decode import Context, read
    from ragen_jax.types import TokenSpan

    config, rows = policy.config, len(prompts)
    context = Context(
        cache=init_cache(config, rows, slots, policy.dtype),
        hidden=jnp.zeros((rows, config.hidden_size), policy.dtype),
    )
    span = TokenSpan(tokens=prompts, length=lengths)
    return read(policy, params, context, span, jnp.zeros_like(lengths))


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

    from ragen_jax.rollout.decode import Decoding, decode_reply
    from ragen_jax.rollout.sampling import sample

    sampler = functools.partial(sample, temperature=temperature, top_k=None, top_p=None)

    @jax.jit
    def write(params, prompts):
        rows, width = prompts.shape
        lengths = jnp.full(rows, width, jnp.int32)
        slots = width + num_tokens + 1
        context = read_prompts(policy, params, prompts, lengths, slots)
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
