"""What a rollout does between two messages of a game, alone: read, then write."""

import functools
from collections.abc import Callable, Sequence


def has_kernel(policy) -> bool:
    """Whether a rollout of this policy, alone on the device, uses our kernels."""
    from ragen_jax.devices.sharding import kernel_platform, make_mesh
    from ragen_jax.models.kernels.decode import uses_kernel

    platform = kernel_platform(make_mesh(data=1, fsdp=1, tensor=1))
    return uses_kernel("auto", policy.config.head_dim, platform, num_tensor=1)


def read_prompts(policy, params, prompts, lengths, slots: int, decoding):
    """The `Context` after reading prompts [B, T] into a new cache of `slots` a row.

    `decoding`: the `Decoding` of what is to be written.
    """
    import jax.numpy as jnp

    from ragen_jax.models.kv_cache import init_cache
    from ragen_jax.rollout.decode import Context, read_in_chunks
    from ragen_jax.types import TokenSpan

    config, rows = policy.config, len(prompts)
    context = Context(
        cache=init_cache(
            config, rows, slots, policy.dtype, slots_last=not decoding.has_kernel
        ),
        hidden=jnp.zeros((rows, config.hidden_size), policy.dtype),
    )
    span = TokenSpan(tokens=prompts, length=lengths)
    starts = jnp.zeros_like(lengths)
    return read_in_chunks(policy, params, context, span, starts, decoding)


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
    uses_kernel = has_kernel(policy)

    @jax.jit
    def write(params, prompts):
        rows, width = prompts.shape
        lengths = jnp.full(rows, width, jnp.int32)
        slots = width + num_tokens + 1
        decoding = Decoding(
            sampler=sampler,
            stop_tokens=jnp.array(stop_tokens),
            max_reply_tokens=num_tokens,
            chunk_tokens=chunk_tokens,
            compactions=compactions,
            has_kernel=uses_kernel,
        )
        context = read_prompts(policy, params, prompts, lengths, slots, decoding)
        return decode_reply(
            policy,
            params,
            context,
            lengths,
            jnp.ones(rows, bool),
            jax.random.split(jax.random.key(0), rows),
            decoding,
        )[1]

    return write
