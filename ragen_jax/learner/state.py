"""The train state, its optimizer and its learning-rate schedules.

In: parameters of the networks. Out: a `TrainState` on its devices, or its
description; and the optax transformation that changes it.
"""

import functools
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PyTree

from ragen_jax.devices.sharding import on_mesh, param_shardings, replicated
from ragen_jax.registry.numbers import Number
from ragen_jax.types import Params

T = TypeVar("T")

# Added to the root of AdamW's second moment (optax, PyTorch).
_ADAM_EPSILON = 1e-8


@struct.dataclass
class Network:
    """Parameters, float32, and their optimizer's state."""

    params: Params
    opt_state: optax.OptState


@struct.dataclass
class Snapshot:
    """A policy at an earlier iteration.

    Attributes:
      params: the trained parameters.
      iteration: calls of `update` before.
    """

    params: Params
    iteration: Int[Array, ""]


@struct.dataclass
class TrainState:
    """Networks and counters.

    Attributes:
      policy: the policy.
      critic: the critic; None if the estimator reads no values.
      kl_coeff: weight of the KL penalty, which an adaptive controller changes.
      iteration: calls of `update` so far.
      num_updates: optimizer steps taken.
      num_skipped: optimizer steps not taken because a gradient was not finite.
      consecutive_skipped: those of them since the last step that was taken.
      rate_scale: factor on the policy's learning rate, set between updates; None: 1.
      acting_snapshot: parameters before the latest update, used for the next rollout,
        on the devices that play; None to use the current ones. Updates do not get it.
    """

    policy: Network
    critic: Network | None
    kl_coeff: Float[Array, ""]
    iteration: Int[Array, ""]
    num_updates: Int[Array, ""]
    num_skipped: Int[Array, ""]
    consecutive_skipped: Int[Array, ""]
    rate_scale: Float[Array, ""] | None = None
    acting_snapshot: Snapshot | None = None

    @property
    def params(self) -> Params:
        """The policy's parameters."""
        return self.policy.params

    @property
    def acting_state(self) -> "TrainState":
        """The state with the parameters that play the next rollout as the policy's."""
        if self.acting_snapshot is None:
            return self
        params = jax.device_put(
            self.acting_snapshot.params, state_shardings(self.params)
        )
        return self.replace(policy=self.policy.replace(params=params))


def init_state(
    policy: Network,
    critic: Network | None,
    mesh: Mesh,
    *,
    kl_coeff: float,
    has_rate_scale: bool = False,
) -> TrainState:
    """A state before the first iteration.

    Args:
      policy, critic: of `init_network`, or of `abstract_network` for a description of
        the state.
      kl_coeff: weight of the KL penalty.
      has_rate_scale: the policy's learning rate may be scaled between updates.
    """
    whole = replicated(mesh)
    is_description = isinstance(jax.tree.leaves(policy)[0], jax.ShapeDtypeStruct)

    def scalar(value, dtype):
        if is_description:  # its devices may be described, too
            return jax.ShapeDtypeStruct((), dtype, sharding=whole)
        return jax.device_put(jnp.asarray(value, dtype), whole)

    names = ("iteration", "num_updates", "num_skipped", "consecutive_skipped")
    return TrainState(
        policy=policy,
        critic=critic,
        kl_coeff=scalar(kl_coeff, jnp.float32),
        # Each has its own buffer: the update donates them all.
        **{name: scalar(0, jnp.int32) for name in names},
        rate_scale=scalar(1.0, jnp.float32) if has_rate_scale else None,
    )


def take_snapshot(state: TrainState, mesh: Mesh) -> Snapshot:
    """A copy of a state's policy on a mesh, which shares no buffer with the state.

    Args:
      state: of arrays or of descriptions, on its own mesh.
      mesh: that one, or one that `make_players` split like it.
    """
    now = Snapshot(state.params, state.iteration)
    where = on_mesh(now, mesh)
    if isinstance(now.iteration, jax.ShapeDtypeStruct):
        return describe(now, where)
    if mesh == now.iteration.sharding.mesh:
        now = jax.tree.map(jnp.copy, now)
    return jax.tree.map(jax.device_put, now, where)


def abstract_network(
    params: Params,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    logical_axes: PyTree,
) -> Network:
    """Description of `init_network`'s result: `jax.ShapeDtypeStruct`s with shardings.

    Args:
      params: starting point: arrays, or anything with shapes.
      optimizer: made by `build_optimizer`.
      mesh: made by `make_mesh`.
      logical_axes: names of the parameters' axes, see `param_shardings`.

    Raises:
      ValueError: the parameters do not fit the mesh, see `param_shardings`.
    """

    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32), params
    )
    by_param = param_shardings(abstract, logical_axes, mesh)
    whole = replicated(mesh)
    network = jax.eval_shape(functools.partial(_create, optimizer), abstract)
    shardings = Network(
        params=by_param,
        opt_state=optax.tree_map_params(
            optimizer,
            lambda _, sharding: sharding,
            network.opt_state,
            by_param,
            transform_non_params=lambda _: whole,
        ),
    )
    return describe(network, shardings)


def init_network(
    params: Params,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    logical_axes: PyTree,
) -> Network:
    """A network and a fresh optimizer on their devices. `params` are copied.

    Args: see `abstract_network`; `params` are arrays of any floating dtype.

    Raises:
      ValueError: the parameters do not fit the mesh, see `param_shardings`.
    """
    shardings = state_shardings(abstract_network(params, optimizer, mesh, logical_axes))
    placed = place_params(params, shardings.params)
    # Of the function itself, not of a new one: another run compiles nothing.
    create = jax.jit(
        _create, static_argnums=0, out_shardings=shardings, donate_argnums=1
    )
    return create(optimizer, placed)


def _create(optimizer: optax.GradientTransformation, params: Params) -> Network:
    return Network(params, optimizer.init(params))


def place_params(params: Params, shardings: PyTree) -> Params:
    """A float32 copy on its devices; it shares no buffer, so that it may be donated."""
    # `may_alias=False` does not hold for arrays that become copies on several devices.
    return jax.tree.map(
        lambda x, sharding: jax.device_put(jnp.array(x, jnp.float32), sharding),
        params,
        shardings,
    )


def state_shardings(state: T) -> T:
    """The sharding of every leaf of a state (of arrays or of their descriptions)."""
    return jax.tree.map(lambda x: x.sharding, state)


def describe(tree: T, shardings: PyTree | None = None) -> T:
    """A tree's shapes, dtypes and shardings, without its numbers.

    Args:
      tree: of arrays or of descriptions.
      shardings: a tree like it, or None: those that its leaves have.
    """
    shardings = state_shardings(tree) if shardings is None else shardings
    return jax.tree.map(
        lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
        tree,
        shardings,
    )


# (highest learning rate, number of the update from 0) -> its learning rate.
Schedule = Callable[[Float[Array, ""], Int[Array, ""]], Float[Array, ""]]


def build_optimizer(
    *,
    beta1: Number,
    beta2: Number,
    weight_decay: Number,
    max_grad_norm: Number,
    beta1_complement: Number | None = None,
    beta2_complement: Number | None = None,
    decays: Callable[[Params], PyTree] | None = None,
) -> optax.GradientTransformation:
    """Gradient clipping by global norm, then AdamW (arXiv 1711.05101) at rate 1.

    Weights decay everywhere, biases and norm scales included, as in RAGEN: at its
    learning rates the decay is too weak for exceptions to matter.

    Args:
      beta1, beta2: decay of the first and second moment.
      weight_decay: decoupled; the learning rate multiplies it, too.
      max_grad_norm: global norm above which the gradient is scaled down.
      beta1_complement, beta2_complement: 1 - beta, for a beta of 32 bits; None: it has
        64 bits.
      decays: parameters -> which of them decay; None: all.
    """
    first = beta1, 1 - beta1 if beta1_complement is None else beta1_complement
    second = beta2, 1 - beta2 if beta2_complement is None else beta2_complement
    return optax.chain(
        optax.clip_by_global_norm(max_grad_norm),
        _scale_by_adam(first, second),
        optax.add_decayed_weights(weight_decay, mask=decays),
    )


def all_but_tower(params: Params) -> PyTree[bool]:
    """Which parameters are not of a vision tower, of a network or of its critic."""

    def is_other(path, leaf) -> bool:
        del leaf
        return "visual" not in [key.key for key in path]

    return jax.tree.map_with_path(is_other, params)


def _scale_by_adam(
    first: tuple[Number, Number], second: tuple[Number, Number]
) -> optax.GradientTransformation:
    """`optax.scale_by_adam`, of pairs beta, 1 - beta: that one subtracts in 32 bits."""

    def update(grads, state, params=None):
        del params
        count = optax.safe_increment(state.count)

        def moment(powers, before, beta, complement):
            """The mean of powers of the gradient, and the same without its bias."""
            after = jax.tree.map(lambda g, m: complement * g + beta * m, powers, before)
            return after, optax.tree.bias_correction(after, beta, count)

        squares = jax.tree.map(jnp.square, grads)
        mu, mean = moment(grads, state.mu, *first)
        nu, square = moment(squares, state.nu, *second)
        directions = jax.tree.map(
            lambda m, v: m / (jnp.sqrt(v) + _ADAM_EPSILON), mean, square
        )
        return directions, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(optax.scale_by_adam().init, update)


def build_schedule(
    *,
    shape: str,
    warmup_updates: Number,
    decay_updates: Number | None,
    final_fraction: Number,
) -> Schedule:
    """The learning rate of an update (from 0), given the highest.

    Args:
      shape: entry of `SCHEDULES`, the way down after the warm-up.
      warmup_updates: updates of a linear rise before it; the first of them already
        trains at a share of the rate.
      decay_updates: update at which `final_fraction` is reached, counted from the start
        of the run. None with "constant".
      final_fraction: of the highest, from then on.
    """
    decay = SCHEDULES[shape]

    def rate(peak: Float[Array, ""], update: Int[Array, ""]) -> Float[Array, ""]:
        done, warmup = update.astype(jnp.float32), jnp.float32(warmup_updates)
        rise = jnp.minimum((done + 1) / (warmup + 1), 1.0)
        fall = 1.0
        if decay_updates is not None:
            length = jnp.float32(jnp.maximum(decay_updates - warmup_updates, 1))
            share = jnp.clip((done - warmup) / length, 0.0, 1.0)
            fall = final_fraction + (1 - final_fraction) * decay(share)
        return jnp.asarray(peak * rise * fall, jnp.float32)

    return rate


def constant(share: Float[Array, ""]) -> Float[Array, ""]:
    """No decay."""
    return jnp.ones_like(share)


def linear(share: Float[Array, ""]) -> Float[Array, ""]:
    """A straight line down."""
    return 1 - share


def cosine(share: Float[Array, ""]) -> Float[Array, ""]:
    """Half a cosine down (arXiv 1608.03983)."""
    return 0.5 * (1 + jnp.cos(jnp.pi * share))


SCHEDULES = {"constant": constant, "linear": linear, "cosine": cosine}
