"""The network as the pure functions that the rest of the project calls.

In: a network's shape and how it is computed. Out: a `Policy`. The NNX modules are split
once, in `build_policy`; from there on a model is a nested dict of float32 arrays
(`params`) and three functions.

Axis letters: see `ragen_jax/types.py`; `Q` tokens of one call.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, PyTree

from ragen_jax.models.attention import choose_attention
from ragen_jax.models.config import ModelConfig
from ragen_jax.models.families import build_network
from ragen_jax.models.kv_cache import KVCache
from ragen_jax.models.vision_config import ShownPictures
from ragen_jax.types import Images, Params

# Logit of an id that no token has. Finite, since an entropy multiplies it by 0; of a
# size that no temperature in use makes infinite or brings near real ones.
SPARE_LOGIT = -1e15


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """A network as pure functions on its parameter tree. None of them is jitted.

    Attributes:
      config: the network's shape.
      dtype: dtype of the computation; pass it to `init_cache`, too.
      remat, attention, num_ids, pictures, freeze_tower: see `build_policy`.
      shapes: the parameters as `jax.ShapeDtypeStruct`s.
      logical_axes: a tuple of axis names (`LOGICAL_AXES`) per parameter. The tuples
        are leaves: map over the tree with `is_leaf=lambda x: type(x) is tuple`.
      init: key -> params, float32.
      forward: (params, tokens[B, Q], positions[B, Q], cache) -> (hidden[B, Q, D],
        cache). Without a cache (None) token i of a row sees tokens 0..i of its row, so
        padding on the right is harmless; `positions` set the rotary angles only. With a
        cache a row's tokens go to slots `positions[:, 0]` onwards, positions being
        contiguous, and the token at position p sees slots 0..p. Rows may start at
        different positions; what a row's padding writes beyond its length is
        overwritten before anything reads it. With a `SharedCache` row `b` continues
        prompt `b // (B / P)`, which its tokens see whole; positions set the angles.
        With `PromptRows`, for gradients as without a cache, `tokens` holds prompts and
        the rows that continue them.
        A network that sees finds the pictures of boards in the tokens. After the cache
        it takes the images that the tokens name (`types.Images`); or a `Sight` where it
        has looked at them already, or where there are other pictures among the tokens
        or before them.
      see: (params, pictures uint8[N, height, width, 3]) -> [N, n, D], what stands where
        the pictures' tokens are; of networks that see.
      look: (params, tokens[B, Q], images or None) -> `Sight` of the pictures among
        them, for calls that read the tokens piece by piece; None if there are none.
      logits: (params, hidden[..., D]) -> float32[..., V]; ids from `num_ids` on have
        `SPARE_LOGIT`, whoever samples or scores.
      cast_params: params -> the same with matrices in `dtype`, for many forward passes
        with unchanging parameters. Gives the same numbers as casting at every use.
    """

    config: ModelConfig
    dtype: jnp.dtype
    remat: str | None
    attention: str
    num_ids: int | None
    pictures: tuple[ShownPictures, ...]
    freeze_tower: bool
    shapes: Params
    logical_axes: PyTree
    init: Callable[[Array], Params]
    forward: Callable[..., tuple[Array, KVCache | None]]
    see: Callable[[Params, Array], Array]
    look: Callable[[Params, Array], Any]
    logits: Callable[[Params, Array], Array]
    cast_params: Callable[[Params], Params]

    def shown(self, images: Images | None) -> "Policy":
        """The policy for tokens that name these images; None: they name none."""
        if images is None:
            return self

        def forward(params, tokens, positions, cache, sight=None):
            seen = images if sight is None else sight
            return self.forward(params, tokens, positions, cache, seen)

        def look(params, tokens):
            return self.look(params, tokens, images)

        return dataclasses.replace(self, forward=forward, look=look)


def build_policy(
    config: ModelConfig,
    *,
    dtype="float32",
    remat: str | None = None,
    attention: str = "blocks",
    num_ids: int | None = None,
    pictures: tuple[ShownPictures, ...] = (),
    freeze_tower: bool = False,
) -> Policy:
    """The pure functions of a network of this shape.

    Args:
      config: shape and constants.
      dtype: of the computation (norms, scores, softmax and logits are float32 anyway).
      remat: entry of `REMAT_POLICIES`: what the uncached forward pass keeps of a layer
        for the backward pass. None: everything.
      attention: entry of `CAUSAL_ATTENTIONS`: how its tokens attend.
      num_ids: ids below it are tokens; the other rows of a padded vocabulary are never
        sampled and have no probability. None: all rows are tokens.
      pictures: what tokens may show to a network that sees.
      freeze_tower: no gradient reaches its tower.

    Raises:
      ValueError: pictures are to be shown to a network of text.
    """
    if pictures and not config.sees:
        raise ValueError(f"a network of {config.model_type!r} sees no pictures")
    dtype = jnp.dtype(dtype)
    how = {"dtype": dtype, "remat": remat, "attention": attention}
    shown = sight_options(pictures, freeze_tower)

    def make(key: Array) -> nnx.Module:
        rngs = nnx.Rngs(params=key)
        return build_network(config, **how, **shown, rngs=rngs)

    graphdef, variables = _describe(config, **how, **shown)

    def merge(params: Params) -> nnx.Module:
        return nnx.merge(graphdef, jax.tree.map(jnp.asarray, params))

    def forward(params, tokens, positions, cache, sight=None):
        return merge(params)(tokens, positions, cache, sight)

    has_spare = num_ids is not None and num_ids < config.vocab_size

    def logits(params, hidden):
        scores = merge(params).logits(hidden)
        if not has_spare:
            return scores
        is_token = jnp.arange(config.vocab_size) < num_ids
        return jnp.where(is_token, scores, SPARE_LOGIT)

    return Policy(
        config=config,
        **how,
        num_ids=num_ids,
        pictures=pictures,
        freeze_tower=freeze_tower,
        shapes=nnx.to_pure_dict(variables),
        logical_axes=axes_of(variables),
        init=lambda key: nnx.to_pure_dict(nnx.state(make(key))),
        forward=forward,
        see=lambda params, pictures: merge(params).see(pictures),
        look=lambda params, *seen: merge(params).look(*seen) if pictures else None,
        logits=logits,
        cast_params=functools.partial(_cast_matrices, dtype),
    )


def _cast_matrices(dtype: jnp.dtype, params: Params) -> Params:
    # Norm scales are used in float32, biases are too small to matter.
    return jax.tree.map(lambda x: x.astype(dtype) if x.ndim > 1 else x, params)


def sight_options(
    pictures: tuple[ShownPictures, ...], freeze_tower: bool
) -> dict[str, Any]:
    """Keyword arguments of the network that a network of text does not have."""
    options = {"pictures": pictures, "freeze_tower": freeze_tower}
    return {name: value for name, value in options.items() if value}


def computation(
    section: Mapping[str, Any], config: ModelConfig, platform: str
) -> dict[str, Any]:
    """Keyword arguments of `build_policy` from the section `model`.

    Args:
      section: its keys and values.
      config: the network's shape.
      platform: of the devices that compute, see `sharding.kernel_platform`.

    Raises:
      ValueError: the attention cannot run there, or there is no tower to freeze.
    """
    if section["freeze_tower"] and not config.sees:
        raise ValueError(
            f"model.freeze_tower=True has no effect: a {config.model_type!r} has no "
            "vision tower"
        )
    how = {key: value for key, value in section.items() if key != "path"}
    dtype = jnp.dtype(how["dtype"])
    how["attention"] = choose_attention(
        how["attention"], dtype, config.head_dim, platform
    )
    return how


def abstract_params(config: ModelConfig) -> Params:
    """`Policy.shapes` of a network of this shape, however it is computed."""
    return build_policy(config).shapes


def axes_of(variables: nnx.State) -> PyTree:
    """`Policy.logical_axes` of the variables of a network."""
    return nnx.to_pure_dict(
        jax.tree.map(
            lambda variable: variable.get_metadata("logical_axes"),
            variables,
            is_leaf=lambda x: isinstance(x, nnx.Variable),
        )
    )


@functools.lru_cache(maxsize=16)
def _describe(config: ModelConfig, **how) -> tuple[nnx.GraphDef, nnx.State]:
    """The network without its arrays. Cached: 24 layers take most of a second."""
    make = functools.partial(build_network, config, **how)
    return nnx.split(nnx.eval_shape(lambda: make(rngs=nnx.Rngs(params=0))))
