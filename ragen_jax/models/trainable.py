"""The part of a policy that is trained: all of it, or adapters over it.

In: a policy, and which part of it learns. Out: a `Trainable`: fresh parameters of that
part, and how they and the frozen rest make a network to learn with, and one to play.
"""

import dataclasses
from collections.abc import Callable

import jax
from jaxtyping import Array, PyTree

from ragen_jax.models.lora import LoraConfig, adapter_axes, build_lora_policy
from ragen_jax.models.policy import Policy
from ragen_jax.types import Params


@dataclasses.dataclass(frozen=True)
class Trainable:
    """The part of a policy that is trained.

    Attributes:
      policy: the network that the learner reads with.
      init: (parameters of a checkpoint, key) -> parameters that are trained.
      logical_axes: of those.
      params: (trained, frozen) -> parameters that `policy` takes.
      play_params: (frozen, trained) -> parameters of the plain policy.
    """

    policy: Policy
    init: Callable[[Params, Array], Params]
    logical_axes: PyTree
    params: Callable[[Params, Params | None], Params]
    play_params: Callable[[Params | None, Params], Params]


def whole(policy: Policy, logical_axes: PyTree) -> Trainable:
    """All of it; nothing is frozen."""
    return Trainable(
        policy=policy,
        init=lambda params, key: params,
        logical_axes=logical_axes,
        params=lambda trained, frozen: trained,
        play_params=lambda frozen, trained: trained,
    )


def adapters(policy: Policy, lora: LoraConfig) -> Trainable:
    """Adapters over the frozen policy, computed as it is."""
    model = policy.config
    adapted = build_lora_policy(
        model,
        lora=lora,
        dtype=policy.dtype,
        remat=policy.remat,
        attention=policy.attention,
    )
    return Trainable(
        policy=adapted,
        init=lambda params, key: adapted.init_adapters(key),
        logical_axes=adapter_axes(model, lora),
        params=lambda trained, frozen: {"base": frozen, "adapters": trained},
        play_params=jax.jit(adapted.merge),
    )
