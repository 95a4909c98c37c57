"""Rollouts of a CPU in parts, several at a time.

In: the keys of a rollout, and the trajectories of its parts. Out: the keys of a part,
and the trajectory of all rows. XLA decodes a token of every row on one core of a CPU,
since its operations are too small to share; rows are independent, so parts of them are
played at once, each from its levels to its last turn by the same program. What a row
gets depends on the size of a part, not on the number of threads or cores.
"""

import concurrent.futures
import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int

from ragen_jax.devices.sharding import by_rows, platform_of
from ragen_jax.rollout.keys import RolloutKeys, spread_levels
from ragen_jax.types import Trajectory

T, R = TypeVar("T"), TypeVar("R")


def rows_per_part(
    part_rows: int | None, mesh: Mesh, num_groups: int, group_size: int
) -> int | None:
    """Rows of each part of a rollout: whole groups; None: all of any rollout.

    Args:
      part_rows: rows of a part, at most, if that is a whole group; None: as many as
        there are. Devices other than a single CPU play all rows of a rollout at once.
    """
    if not is_one_cpu(mesh):
        return None
    most = num_groups if part_rows is None else max(1, part_rows // group_size)
    num_parts = -(-num_groups // most)
    return -(-num_groups // num_parts) * group_size


def is_one_cpu(mesh: Mesh) -> bool:
    """Whether a single CPU device plays."""
    return mesh.size == 1 and platform_of(mesh) == "cpu"


@functools.partial(jax.jit, static_argnames=("count", "group_size"))
def cut_rows(
    keys: RolloutKeys, start: int | Int[Array, ""], *, count: int, group_size: int
) -> RolloutKeys:
    """The keys of `count` rows from a row on, a level key each.

    The first rows follow the last: they fill a part, and are dropped by `join_rows`.
    """
    keys = spread_levels(keys, group_size)
    rows = (start + jnp.arange(count)) % len(keys.noise)
    return jax.tree.map(lambda x: x[rows], keys)


def join_rows(parts: Sequence[Trajectory], num_rows: int, mesh: Mesh) -> Trajectory:
    """The first `num_rows` rows; joined by the host, which compiles nothing for it."""
    where = by_rows(mesh)

    def join(*leaves: np.ndarray) -> Array:
        return jax.device_put(np.concatenate(leaves)[:num_rows], where)

    return jax.tree.map(join, *jax.device_get(list(parts)))


def run_parts(
    program: Callable[[T], R], parts: Sequence[T], *, concurrently: bool
) -> list[R]:
    """Finished results of a jitted program, several calls at a time if `concurrently`.

    A device of a CPU runs the calls of one thread one after the other, those of
    several threads at once.
    """
    starting = threading.Lock()

    def run(part: T) -> R:
        # The call returns before it has run; the first one compiles.
        with starting:
            result = program(part)
        return jax.block_until_ready(result)

    # One thread beyond the cores: a part may wait where another computes.
    num_threads = min(len(parts), _num_cores() + 1) if concurrently else 1
    with concurrent.futures.ThreadPoolExecutor(num_threads) as threads:
        return list(threads.map(run, parts))


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
