"""Sizes of the arrays of a run, from descriptions.

In: the `Parts` of a program, or a tree of arrays or descriptions. Out: bytes of one
device. Nothing is allocated or compiled, and networks are traced with two layers.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jaxtyping import PyTree
from ml_collections import ConfigDict

from ragen_jax.devices.sharding import by_rows
from ragen_jax.learner.logprobs import hidden_states
from ragen_jax.models.kv_cache import init_cache
from ragen_jax.models.policy import Policy, build_policy
from ragen_jax.program.build import Parts
from ragen_jax.types import TokenSpan, Trajectory


def tree_bytes(tree: PyTree) -> int:
    """Bytes of a tree of arrays or descriptions on one device."""
    return sum(_leaf_bytes(leaf) for leaf in jax.tree.leaves(tree))


def _leaf_bytes(leaf) -> int:
    # Descriptions from `eval_shape` have no sharding.
    is_whole = leaf.sharding is None
    shape = leaf.shape if is_whole else leaf.sharding.shard_shape(leaf.shape)
    return math.prod(shape) * jnp.dtype(leaf.dtype).itemsize


def cache_bytes(parts: Parts, num_rows: int, slots: int | None = None) -> int:
    """Keys and values of `num_rows` rows over all devices.

    Args:
      slots: of a row; None: of the longest game.
    """
    if slots is None:
        slots = max(task.dialogue.max_window_tokens for task in parts.tasks) + 1
    rows = local_rows(parts, num_rows)
    dtype = parts.policy.dtype
    cache = jax.eval_shape(lambda: init_cache(parts.model, rows, slots, dtype))
    return tree_bytes(cache)


def local_rows(parts: Parts, num_rows: int) -> int:
    """Rows of one device."""
    return parts.batch_sharding.shard_shape((num_rows,))[0]


def playing(parts: Parts) -> Parts:
    """The parts with rows split over the devices that play training rollouts."""
    return dataclasses.replace(parts, batch_sharding=by_rows(parts.players))


@dataclasses.dataclass(frozen=True)
class Activations:
    """Bytes that a forward pass of a microbatch keeps for the backward pass.

    Attributes:
      of_layer: of one layer.
      beside: of everything else.
    """

    of_layer: int
    beside: int


def activations(
    config: ConfigDict, parts: Parts, batch: Trajectory, **how
) -> Activations:
    """Activations of the plain network's forward pass of a microbatch.

    Args:
      batch: of an update.
      how: replaces keyword arguments of `build_policy`.
    """
    read = read_tokens(config, parts, batch)
    # The difference of two layers and one is what a layer keeps.
    one, two = (_kept(_thin_policy(parts, layers, **how), read) for layers in (1, 2))
    return Activations(of_layer=two - one, beside=max(2 * one - two, 0))


def _thin_policy(parts: Parts, num_layers: int, **how) -> Policy:
    model = dataclasses.replace(parts.model, num_hidden_layers=num_layers)
    policy = parts.policy
    as_planned = {"remat": policy.remat, "attention": policy.attention}
    return build_policy(model, **({"dtype": policy.dtype} | as_planned | how))


def read_tokens(
    config: ConfigDict, parts: Parts, batch: Trajectory
) -> tuple[jax.ShapeDtypeStruct, TokenSpan | None]:
    """What one device reads of a microbatch: rows, and prompts that these share.

    Args:
      batch: of an update.
    """
    rows, shared = config.learner.microbatch_rows, parts.learner.stages.passes.prompts
    num_rows = local_rows(parts, rows)

    def describe(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.int32)

    if shared is None:
        read = batch if batch.windows is None else batch.windows
        return describe(num_rows, read.tokens.shape[-1]), None
    num_prompts = local_rows(parts, rows // shared.group_size)
    prompts = describe(num_prompts, shared.message_tokens - 1), describe(num_prompts)
    return describe(num_rows, shared.following_tokens + 1), TokenSpan(*prompts)


def _kept(policy: Policy, read: tuple[jax.ShapeDtypeStruct, TokenSpan | None]) -> int:
    """Bytes that a forward pass keeps, without the weights."""
    params = policy.shapes

    def kept(params, tokens, prompts):
        def forward(params):
            return hidden_states(policy, params, tokens, prompts=prompts)

        return jax.vjp(forward, params)[1]

    residuals = jax.eval_shape(kept, params, *read)
    # Neither copies of the weights nor stacks of them, which a loop over the layers
    # makes, are activations.
    weights = {leaf.shape for leaf in jax.tree.leaves(params)}
    weights |= {(policy.config.num_hidden_layers, *shape) for shape in weights}
    leaves = jax.tree.leaves(residuals)
    return sum(_leaf_bytes(leaf) for leaf in leaves if leaf.shape not in weights)
