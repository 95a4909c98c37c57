"""The train state: all that an iteration changes, and all that a checkpoint holds."""

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Int, PyTree

from ragen_jax.learner.sharding import param_shardings, replicated
from ragen_jax.types import Params


@struct.dataclass
class TrainState:
    """Parameters, optimizer and counters.

    Attributes:
      params: the policy's parameters, float32.
      opt_state: the optimizer's state.
      iteration: calls of `update` so far.
      num_updates: optimizer steps taken.
      num_skipped: optimizer steps not taken because the gradient was not finite.
      consecutive_skipped: those of them since the last step that was taken.
    """

    params: Params
    opt_state: optax.OptState
    iteration: Int[Array, ""]
    num_updates: Int[Array, ""]
    num_skipped: Int[Array, ""]
    consecutive_skipped: Int[Array, ""]


def init_state(
    params: Params,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    logical_axes: PyTree,
) -> TrainState:
    """A state before the first iteration, on its devices. `params` are copied.

    Args:
      params: starting point, of any floating dtype.
      optimizer: made by `build_optimizer`.
      mesh: made by `make_mesh`.
      logical_axes: names of the parameters' axes, see `param_shardings`.

    Raises:
      ValueError: the parameters do not fit the mesh, see `param_shardings`.
    """

    def create(params: Params) -> TrainState:
        zero = jnp.zeros((), jnp.int32)
        return TrainState(params, optimizer.init(params), zero, zero, zero, zero)

    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32), params
    )
    by_param = param_shardings(abstract, logical_axes, mesh)
    whole = replicated(mesh)
    state = jax.eval_shape(create, abstract)
    shardings = jax.tree.map(lambda _: whole, state).replace(
        params=by_param,
        opt_state=optax.tree_map_params(
            optimizer,
            lambda _, sharding: sharding,
            state.opt_state,
            by_param,
            transform_non_params=lambda _: whole,
        ),
    )
    # The update donates the state: it must not share buffers with the caller's arrays.
    placed = jax.tree.map(
        lambda x, sharding: jax.device_put(
            jnp.asarray(x, jnp.float32), sharding, may_alias=False
        ),
        params,
        by_param,
    )
    return jax.jit(create, out_shardings=shardings, donate_argnums=0)(placed)


def state_shardings(state: TrainState) -> TrainState:
    """The sharding of every leaf of a state (of arrays or of their descriptions)."""
    return jax.tree.map(lambda x: x.sharding, state)
