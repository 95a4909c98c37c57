"""The rows of a rollout on a mesh: each device plays its own rows.

In: a mesh and the numbers of groups and rows. Out: functions split over the devices,
and the agreement that loops need where devices exchange activations.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool

from ragen_jax.devices.sharding import ROW_AXES, row_problems
from ragen_jax.rollout.decode import AnyRow


class RowLayout:
    """The rows of a rollout, split over a mesh.

    Attributes:
      mesh: of the devices.
      group_size: adjacent rows that may share a level.
      any_row: agreement of the devices on another turn of a loop.
    """

    def __init__(self, mesh: Mesh, group_size: int):
        self.mesh, self.group_size = mesh, group_size
        self.any_row = _any_row(mesh)

    def over_rows(self, function: Callable, *, num_replicated: int) -> Callable:
        """The function with its rows split over the devices.

        Its first `num_replicated` arguments are the same on each, the others have rows.
        """
        whole, by_row = PartitionSpec(), PartitionSpec(ROW_AXES)

        # Its name is that of the program in profiles and logs.
        @functools.wraps(function)
        def call(*arguments):
            num_split = len(arguments) - num_replicated
            return jax.shard_map(
                function,
                mesh=self.mesh,
                in_specs=(whole,) * num_replicated + (by_row,) * num_split,
                out_specs=by_row,
                axis_names=set(ROW_AXES),
                check_vma=False,
            )(*arguments)

        return call


def check_rows(mesh: Mesh, num_rows: int) -> None:
    """Refuse rows that cannot be split over a mesh.

    Raises:
      ValueError: says which numbers can.
    """
    for problem in row_problems("groups x rollouts", num_rows, mesh.shape):
        raise ValueError(problem)


def _any_row(mesh: Mesh) -> AnyRow:
    """Agreement of devices with different rows on another turn of a loop.

    With the whole network on each device none is needed: a device whose rows have
    finished stops. A network split over `tensor` exchanges activations, and an exchange
    that some devices never reach blocks the others: all rows leave a loop together.
    """
    if mesh.shape["tensor"] == 1 or mesh.size == mesh.shape["tensor"]:
        return jnp.any

    def any_row(mask: Bool[Array, " B"]) -> Bool[Array, ""]:
        return jax.lax.pmax(jnp.any(mask).astype(jnp.int32), ROW_AXES) > 0

    return any_row
