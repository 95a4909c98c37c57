"""The part of a policy that is trained: all of it, or adapters over it.

In: a policy, and which part of it learns. Out: a `Trainable`: functions that make the
parameters of that part, and the networks of them and the frozen rest, to learn with
and to play with.
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
      policy: the network of the learner's passes.
      init: (parameters of a checkpoint, key) -> trained parameters.
      logical_axes: axes of the trained parameters.
      params: (trained, frozen) -> parameters that `policy` takes.
      play_params: (frozen, trained) -> parameters of the plain policy.
    """

    policy: Policy
    init: Callable[[Params, Array], Params]
    logical_axes: PyTree
    params: Callable[[Params, Params | None], Params]
    play_params: Callable[[Params | None, Params], Params]


def whole(policy: Policy) -> Trainable:
    """Trains the whole policy; nothing is frozen."""
    return Trainable(
        policy=policy,
        init=lambda params, key: params,
        logical_axes=policy.logical_axes,
        params=lambda trained, frozen: trained,
        play_params=lambda frozen, trained: trained,
    )


def adapters(policy: Policy, lora: LoraConfig) -> Trainable:
    """Trains adapters over the frozen policy, computed as that is."""
    model = policy.config
    adapted = build_lora_policy(
        model,
        lora=lora,
        dtype=policy.dtype,
        remat=policy.remat,
        attention=policy.attention,
        num_ids=policy.num_ids,
        pictures=policy.pictures,
        freeze_tower=policy.freeze_tower,
    )
    return Trainable(
        policy=adapted,
        init=lambda params, key: adapted.init_adapters(key),
        logical_axes=adapter_axes(model, lora),
        params=lambda trained, frozen: {"base": frozen, "adapters": trained},
        play_params=jax.jit(adapted.merge),
    )
