"""The decoder of Qwen and Llama as NNX modules; `policy` makes functions of them.

Pre-norm layers of grouped-query attention and a gated MLP. Where families differ, the
layers read it from `ModelConfig` (`qkv_bias`, `qk_norm`). Nothing here depends on
sampling, losses or devices. Module and attribute names are those of the Hugging Face
checkpoint, so that `hf/weights` needs no table.

Axis letters: see `ragen_jax/types.py`; `Q` tokens of one call, `S` cache slots.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from ragen_jax.models.attention import (
    CAUSAL_ATTENTIONS,
    attend_cached,
    attend_shared,
    rope_angles,
    rotate,
)
from ragen_jax.models.config import ModelConfig
from ragen_jax.models.kernels.decode import attend_message, attend_new_token
from ragen_jax.models.kernels.project import project_normed
from ragen_jax.models.kv_cache import (
    KVCache,
    LayerCache,
    PromptRows,
    SharedCache,
    SharedLayer,
    as_layer_cache,
    write_layer,
)
from ragen_jax.models.layers import MLP, Linear, RMSNorm
from ragen_jax.models.products import PRODUCT, product_float32

# Name of the outputs of the projections in attention, for `REMAT_POLICIES`.
ATTENTION = "attention projection"


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: ModelConfig, *, dtype, attention, rngs: nnx.Rngs):
        width, head_dim = config.hidden_size, config.head_dim
        heads = config.num_attention_heads * head_dim
        kv_heads = config.num_key_value_heads * head_dim
        shared = {"init_scale": config.initializer_range, "dtype": dtype, "rngs": rngs}
        projection = {"use_bias": config.qkv_bias, **shared}
        kv_axes = ("embed", "kv_heads")
        self.q_proj = Linear((width, heads), ("embed", "heads"), **projection)
        self.k_proj = Linear((width, kv_heads), kv_axes, **projection)
        self.v_proj = Linear((width, kv_heads), kv_axes, **projection)
        self.o_proj = Linear(
            (heads, width), ("heads", "embed"), use_bias=False, **shared
        )
        if config.qk_norm:
            self.q_norm = RMSNorm(head_dim, config.rms_norm_eps)
            self.k_norm = RMSNorm(head_dim, config.rms_norm_eps)
        self.qk_norm = config.qk_norm
        self.head_dim = head_dim
        self.attention = attention
        self.dtype = dtype

    def __call__(
        self,
        x: Float[Array, "B Q D"],
        positions: Int[Array, "B Q"],
        angles: tuple[Array, Array],
        layer_cache: LayerCache | SharedLayer | PromptRows | None,
    ) -> tuple[Float[Array, "B Q D"], LayerCache | SharedLayer | PromptRows | None]:
        batch, num_tokens, _ = x.shape
        split = (batch, num_tokens, -1, self.head_dim)
        into = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        queries, keys, values = (
            checkpoint_name(x, ATTENTION).reshape(split) for x in into
        )
        if self.qk_norm:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries, keys = rotate(queries, angles), rotate(keys, angles)
        if layer_cache is None:
            mixed = CAUSAL_ATTENTIONS[self.attention](queries, keys, values)
        elif isinstance(layer_cache, PromptRows):
            mixed = self._attend_prompt_rows((queries, keys, values), layer_cache)
        elif isinstance(layer_cache, SharedLayer):
            prompt, new = layer_cache.cache, as_layer_cache(keys, values)
            mixed = attend_shared(
                queries,
                new.keys,
                new.values,
                prompt.keys_by_column,
                prompt.values,
                layer_cache.lengths,
            )
        else:
            layer_cache = write_layer(layer_cache, keys, values, positions[:, 0])
            mixed = self._attend_cached(queries, layer_cache, positions)
        out = self.o_proj(mixed.reshape(batch, num_tokens, -1))
        return checkpoint_name(out, ATTENTION), layer_cache

    def _attend_prompt_rows(self, qkv: tuple[Array, ...], layout: PromptRows) -> Array:
        """Prompts attend as they do alone, rows to themselves and to their prompt."""
        prompts, rows = zip(*map(layout.split, qkv), strict=True)
        of_prompts = CAUSAL_ATTENTIONS[self.attention](*prompts)
        new, stored = as_layer_cache(*rows[1:]), as_layer_cache(*prompts[1:])
        of_rows = attend_shared(
            rows[0], new.keys, new.values, stored.keys, stored.values, layout.lengths
        )
        return layout.join(of_prompts, of_rows)

    def has_kernels(self, layer_cache) -> bool:
        """Whether `decode` computes a token: plain weights, a cache made for it."""
        is_cache = isinstance(layer_cache, LayerCache) and not layer_cache.slots_last
        into = (self.q_proj, self.k_proj, self.v_proj)
        return is_cache and all(linear.adapter_scale is None for linear in into)

    def _attend_cached(self, queries, cache: LayerCache, positions):
        if cache.slots_last:
            arrays = cache.keys, cache.values, positions
            return attend_cached(queries, *arrays, reads_all=cache.reads_all)
        return attend_message(queries, cache, positions)

    def decode(
        self,
        x: Float[Array, "B 1 D"],
        norm: RMSNorm,
        positions: Int[Array, "B 1"],
        angles: tuple[Array, Array],
        layer_cache: LayerCache,
    ) -> tuple[Float[Array, "B 1 D"], LayerCache]:
        """`self(norm(x), ...)` for single tokens, by the kernels of `kernels`."""
        into = (self.q_proj, self.k_proj, self.v_proj)
        weights = [p.kernel[...].astype(self.dtype) for p in into]
        biases = [p.bias[...] for p in into] if self.q_proj.use_bias else None
        heads = project_normed(x, norm.scale[...], norm.eps, weights, biases)
        heads = heads.reshape(*x.shape[:2], -1, self.head_dim)
        if self.qk_norm:
            ends = [w.kernel.shape[1] // self.head_dim for w in into]
            queries, keys, values = jnp.split(heads, [ends[0], sum(ends[:2])], axis=2)
            normed = self.q_norm(queries), self.k_norm(keys)
            heads = jnp.concatenate([*normed, values], axis=2)
        mixed, layer_cache = attend_new_token(heads, angles, layer_cache, positions)
        return self.o_proj(mixed), layer_cache


class DecoderLayer(nnx.Module):
    """Pre-norm attention and MLP, each added to the residual stream."""

    def __init__(self, config: ModelConfig, *, dtype, attention, rngs: nnx.Rngs):
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, dtype=dtype, attention=attention, rngs=rngs)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(
            config.hidden_size,
            config.intermediate_size,
            use_bias=False,
            init_scale=config.initializer_range,
            dtype=dtype,
            rngs=rngs,
        )

    def __call__(self, x, positions, angles, layer_cache):
        norm, where = self.input_layernorm, (positions, angles, layer_cache)
        if x.shape[1] == 1 and self.self_attn.has_kernels(layer_cache):
            mixed, layer_cache = self.self_attn.decode(x, norm, *where)
        else:
            mixed, layer_cache = self.self_attn(norm(x), *where)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), layer_cache


class Decoder(nnx.Module):
    """The whole network; `__call__` stops before the output head."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        dtype,
        remat: str | None,
        attention: str,
        rngs: nnx.Rngs,
    ):
        shape, axes = (config.vocab_size, config.hidden_size), ("vocab", "embed")
        scale = config.initializer_range
        table = scale * jax.random.normal(rngs.params(), shape)
        self.embed_tokens = nnx.Dict(weight=nnx.Param(table, logical_axes=axes))
        self.layers = nnx.Dict(
            {
                str(i): DecoderLayer(
                    config, dtype=dtype, attention=attention, rngs=rngs
                )
                for i in range(config.num_hidden_layers)
            }
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        if not config.tie_word_embeddings:
            head = scale * jax.random.normal(rngs.params(), shape)
            self.lm_head = nnx.Dict(weight=nnx.Param(head, logical_axes=axes))
        self.config = config
        self.dtype = dtype
        self.remat = remat

    def __call__(
        self,
        tokens: Int[Array, "B Q"],
        positions: Int[Array, "B Q"],
        cache: KVCache | SharedCache | PromptRows | None,
        sight: Any = None,
    ) -> tuple[Float[Array, "B Q D"], KVCache | SharedCache | PromptRows | None]:
        config = self.config
        x, angles = self._embed(tokens, positions, cache, sight)
        has_gradients = cache is None or isinstance(cache, PromptRows)
        if has_gradients and self.remat is not None:
            return self.norm(self._scan_layers(x, positions, angles, cache)), cache
        new_caches = []
        for i in range(config.num_hidden_layers):
            layer = nnx.split(self.layers[str(i)])
            x, layer_cache = _run_layer(
                *layer, x, positions, angles, _layer_of(cache, i)
            )
            new_caches.append(layer_cache)
        if isinstance(cache, KVCache):
            cache = cache.with_layers(new_caches)
        return self.norm(x), cache

    def _embed(
        self,
        tokens: Int[Array, "B Q"],
        positions: Int[Array, "B Q"],
        cache: KVCache | SharedCache | PromptRows | None,
        sight: Any,
    ) -> tuple[Float[Array, "B Q D"], tuple[Array, Array]]:
        """Embeddings of tokens, and the angles by which their heads turn."""
        del cache
        config = self.config
        if sight is not None:
            raise ValueError(f"a network of {config.model_type!r} sees no pictures")
        table = self.embed_tokens["weight"][...].astype(self.dtype)
        x = table.at[tokens].get(mode="clip")  # padding may be of any value
        angles = rope_angles(
            positions, config.head_dim, config.rope_theta, config.rope_scaling
        )
        return x, angles

    def _scan_layers(self, x, positions, angles, layout) -> Float[Array, "B Q D"]:
        """All layers, one after the other in a loop, recomputed as `remat` says.

        A loop, because XLA may not merge what it computes again with what it computed
        before. On CPUs it does so with layers that are unrolled: nothing is saved.
        """
        layers = [self.layers[str(i)] for i in range(self.config.num_hidden_layers)]
        graphdef, _ = nnx.split(layers[0])
        # Cast before they are stacked, as a layer would: half as large in bfloat16.
        states = [
            jax.tree.map(self._cast, nnx.to_pure_dict(nnx.state(layer)))
            for layer in layers
        ]
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *states)

        def run(x, params):
            with jax.named_scope("layer"):
                layer = nnx.merge(graphdef, params)
                return layer(x, positions, angles, layout)[0], None

        policy = REMAT_POLICIES[self.remat]
        run = jax.checkpoint(run, policy=policy, prevent_cse=False)
        return jax.lax.scan(run, x, stacked)[0]

    def _cast(self, x: Array) -> Array:
        """Norm scales are used in float32, biases are too small to matter."""
        return x.astype(self.dtype) if x.ndim > 1 else x

    def logits(self, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Float32 scores of the next token."""
        is_tied = self.config.tie_word_embeddings
        head = self.embed_tokens if is_tied else self.lm_head
        table = head["weight"][...].astype(self.dtype)
        return product_float32(hidden.astype(self.dtype), table)


@functools.partial(jax.jit, static_argnums=0)
def _run_layer(graphdef, state, x, positions, angles, layer_cache):
    """A layer, traced once for all layers of a network; XLA puts it inline again.

    JAX keeps the trace: a test that replaces what a layer calls clears JAX's caches.
    """
    with jax.named_scope("layer"):
        return nnx.merge(graphdef, state)(x, positions, angles, layer_cache)


def _layer_of(cache: KVCache | SharedCache | PromptRows | None, i: int):
    if cache is None or isinstance(cache, PromptRows):
        return cache
    if isinstance(cache, SharedCache):
        return SharedLayer(cache.cache.layer(i), cache.lengths)
    return cache.layer(i)


# What a layer keeps for its backward pass besides its input; the rest is computed
# again. In order of memory, numbers per token for width D, J key/value heads of size F
# and inner width I. Name -> policy of `jax.checkpoint`.
REMAT_POLICIES = {
    # Nothing: D numbers. The forward pass runs twice, but for its last product.
    "layers": jax.checkpoint_policies.nothing_saveable,
    # q, k, v and what attention adds to the stream: 3 D + 2 J F. Softmax and the wide
    # MLP run twice.
    "attention": jax.checkpoint_policies.save_only_these_names(ATTENTION),
    # Every projection's output: 4 D + 2 J F + 2 I. Softmax and what is not a matrix
    # product run twice.
    "projections": jax.checkpoint_policies.save_only_these_names(PRODUCT),
}
