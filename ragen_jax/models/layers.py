"""Layers that networks share: a matrix with its bias and adapter, a norm, an MLP.

In: sizes and the dtype of the computation. Out: NNX modules of float32 parameters,
whose names are those of Hugging Face checkpoints.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from ragen_jax.models.products import product

# Names a parameter's axes may carry; `ragen_jax/devices/sharding.py` maps them to axes
# of the mesh. "heads" and "kv_heads" are heads x head size: a split must fall between
# heads.
LOGICAL_AXES = ("vocab", "embed", "heads", "kv_heads", "mlp", "norm", "rank")


class Linear(nnx.Module):
    """`x @ kernel + bias`, computed in `dtype` from float32 parameters.

    With an adapter (`models/lora.py`): `x @ kernel + (x @ lora_a) @ lora_b * scale +
    bias`. The product of the two small matrices is never formed, nor its gradient.
    """

    def __init__(
        self, sizes, axes, *, use_bias: bool, init_scale: float, dtype, rngs: nnx.Rngs
    ):
        kernel = init_scale * jax.random.normal(rngs.params(), sizes)
        self.kernel = nnx.Param(kernel, logical_axes=axes)
        if use_bias:
            self.bias = nnx.Param(jnp.zeros(sizes[1:]), logical_axes=axes[1:])
        self.use_bias = use_bias
        self.adapter_scale = None
        self.dtype = dtype

    def add_adapter(self, rank: int, scale: float) -> None:
        """Adds `lora_a` [in, rank] and `lora_b` [rank, out], both zero."""
        axes = self.kernel.get_metadata("logical_axes")
        into, out = self.kernel.shape
        a, b = jnp.zeros((into, rank)), jnp.zeros((rank, out))
        self.lora_a = nnx.LoRAParam(a, logical_axes=(axes[0], "rank"))
        self.lora_b = nnx.LoRAParam(b, logical_axes=("rank", axes[1]))
        self.adapter_scale = scale

    def __call__(self, x: Float[Array, "B Q n"]) -> Float[Array, "B Q m"]:
        # As one matrix: the kernel's gradient then sums over one axis, not two, which
        # takes a third of the time on CPUs.
        rows = x.reshape(-1, x.shape[-1])
        out = product(rows, self.kernel[...].astype(self.dtype))
        if self.adapter_scale is not None:
            # Scaled while it is narrow.
            low = product(rows, self.lora_a[...].astype(self.dtype))
            low = low * self.adapter_scale
            out = out + product(low, self.lora_b[...].astype(self.dtype))
        if self.use_bias:
            out = out + self.bias[...].astype(self.dtype)[None]
        return out.reshape(*x.shape[:-1], -1)


class RMSNorm(nnx.Module):
    """`x / sqrt(mean(x^2) + eps) * scale` in float32 (arXiv 1910.07467)."""

    def __init__(self, width: int, eps: float):
        self.scale = nnx.Param(jnp.ones(width), logical_axes=("norm",))
        self.eps = eps

    def __call__(self, x: Float[Array, "... n"]) -> Float[Array, "... n"]:
        wide = x.astype(jnp.float32)
        mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
        normed = wide * jax.lax.rsqrt(mean_square + self.eps)
        scale = jnp.expand_dims(self.scale[...], range(x.ndim - 1))
        return (normed * scale).astype(x.dtype)


class MLP(nnx.Module):
    """SwiGLU: `down(silu(gate(x)) * up(x))` (arXiv 2002.05202)."""

    def __init__(
        self,
        width: int,
        inner: int,
        *,
        use_bias: bool,
        init_scale: float,
        dtype,
        rngs: nnx.Rngs,
    ):
        shared = {
            "use_bias": use_bias,
            "init_scale": init_scale,
            "dtype": dtype,
            "rngs": rngs,
        }
        self.gate_proj = Linear((width, inner), ("embed", "mlp"), **shared)
        self.up_proj = Linear((width, inner), ("embed", "mlp"), **shared)
        self.down_proj = Linear((inner, width), ("mlp", "embed"), **shared)

    def __call__(self, x: Float[Array, "B Q D"]) -> Float[Array, "B Q D"]:
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))
