"""The critic: an estimate of the reward still to come, at every token.

In: hidden states. Out: a float32 number for each, from a value head (width -> 1). The
hidden states are those of a separate trunk, which starts as a copy of the policy
(RAGEN's default), or the policy's. Nothing here depends on rewards or losses.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from ragen_jax.models.config import ModelConfig
from ragen_jax.models.lora import LoraConfig, adapter_axes, build_lora_policy
from ragen_jax.models.policy import Policy, build_policy
from ragen_jax.models.vision_config import ShownPictures
from ragen_jax.types import Params


@dataclasses.dataclass(frozen=True)
class Critic:
    """A critic as pure functions on its parameters, `{"head": ..., ...}`.

    Attributes:
      trunk: network that reads the tokens. None: the policy's hidden states are used.
      init: (policy's params, key) -> the critic's. The head starts at 0, and so do all
        values.
      trunk_params: (critic's params, frozen params) -> parameters of `trunk`.
      logical_axes: names of the parameters' axes, see `ragen_jax/models/decoder.py`.
    """

    trunk: Policy | None
    init: Callable[[Params, Array], Params]
    trunk_params: Callable[[Params, Params | None], Params]
    logical_axes: Params

    @staticmethod
    def values(params: Params, hidden: Float[Array, "... D"]) -> Float[Array, "..."]:
        """The value head, in float32."""
        head = params["head"]
        return hidden.astype(jnp.float32) @ head["kernel"] + head["bias"][0]


def build_critic(
    config: ModelConfig,
    trunk: str,
    *,
    dtype,
    remat: str | None = None,
    attention: str = "blocks",
    pictures: tuple[ShownPictures, ...] = (),
    freeze_tower: bool = False,
    lora: LoraConfig | None = None,
) -> Critic:
    """A critic for a policy of this shape.

    Args:
      config: the policy's.
      trunk: entry of `TRUNKS`.
      dtype, remat, attention, pictures, freeze_tower: of a separate trunk, see
        `build_policy`.
      lora: adapters of a separate trunk, over the frozen policy. None: the whole trunk
        is trained.
    """
    how = {"dtype": dtype, "remat": remat, "attention": attention}
    how |= {"pictures": pictures, "freeze_tower": freeze_tower}
    return TRUNKS[trunk](config, lora, how)


def separate(
    config: ModelConfig, lora: LoraConfig | None, how: Mapping[str, Any]
) -> Critic:
    """A separate network of the policy's shape, without the output head."""
    headless = dataclasses.replace(config, tie_word_embeddings=True)
    if lora is not None:
        return _adapted(headless, lora, how)

    def init(params: Params, key: Array) -> Params:
        del key
        return {"head": _new_head(config), "trunk": _without_head(params)}

    network = build_policy(headless, **how)
    return Critic(
        trunk=network,
        init=init,
        trunk_params=lambda params, frozen: params["trunk"],
        logical_axes={"head": _HEAD_AXES, "trunk": network.logical_axes},
    )


def shared(
    config: ModelConfig, lora: LoraConfig | None, how: Mapping[str, Any]
) -> Critic:
    """A head on the policy's hidden states; its loss trains the policy's trunk."""
    del lora, how
    return Critic(
        trunk=None,
        init=lambda params, key: {"head": _new_head(config)},
        trunk_params=lambda params, frozen: {},
        logical_axes={"head": _HEAD_AXES},
    )


def _adapted(headless: ModelConfig, lora: LoraConfig, how: Mapping[str, Any]) -> Critic:
    trunk = build_lora_policy(headless, lora=lora, **how)

    def init(params: Params, key: Array) -> Params:
        del params
        return {"head": _new_head(headless), "adapters": trunk.init_adapters(key)}

    def trunk_params(params: Params, frozen: Params | None) -> Params:
        return {"base": _without_head(frozen), "adapters": params["adapters"]}

    axes = {"head": _HEAD_AXES, "adapters": adapter_axes(headless, lora)}
    return Critic(trunk, init, trunk_params, axes)


def _without_head(params: Params) -> Params:
    return {name: x for name, x in params.items() if name != "lm_head"}


def _new_head(config: ModelConfig) -> Params:
    return {"kernel": jnp.zeros(config.hidden_size), "bias": jnp.zeros(1)}


_HEAD_AXES = {"kernel": ("norm",), "bias": ("norm",)}

TRUNKS = {"separate": separate, "shared": shared}
