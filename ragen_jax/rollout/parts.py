"""Rollouts of a CPU in parts, several at a time.

In: the compiled rollout of a few groups. Out: the rollout of all of them. XLA decodes
a token of every row on one core of a CPU, since its operations are too small to share;
rows are independent, so parts of them are played at once, each from its levels to its
last turn by the same program. What a row gets depends on the size of a part, not on the
number of threads or cores.
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

from ragen_jax.rollout.keys import RolloutKeys
from ragen_jax.sharding import by_rows, platform_of
from ragen_jax.text.dialogue import Dialogue
from ragen_jax.types import Params, Trajectory

T, R = TypeVar("T"), TypeVar("R")


def groups_per_part(
    part_rows: int | None, mesh: Mesh, num_groups: int, group_size: int
) -> int:
    """Number of groups per rollout part: all groups, except on a single CPU device.

    Args:
      part_rows: rows of a part, at most, if that is a whole group; None: all rows.
    """
    if part_rows is None or mesh.size > 1 or platform_of(mesh) != "cpu":
        return num_groups
    most = max(1, part_rows // group_size)
    num_parts = -(-num_groups // most)
    return -(-num_groups // num_parts)


class CollectInParts:
    """A rollout of `num_groups` groups by the program of a part.

    Where the last part is not full, rows of the first groups fill it and are dropped.
    Not to be called while JAX traces: it starts threads.

    Args:
      collect: jitted `(params, dialogue, keys) -> Trajectory` of `part_groups` groups.
      num_groups, group_size, part_groups: groups in all, rows and groups of a part.
      mesh: of one device.
    """

    def __init__(
        self,
        collect: Callable[[Params, Dialogue, RolloutKeys], Trajectory],
        *,
        num_groups: int,
        group_size: int,
        part_groups: int,
        mesh: Mesh,
    ):
        self.num_parts = -(-num_groups // part_groups)
        self._collect, self._part_groups = collect, part_groups
        self._num_rows, self._where = num_groups * group_size, by_rows(mesh)
        self._cut = jax.jit(functools.partial(_cut, part_groups))

    def __call__(
        self, params: Params, dialogue: Dialogue, keys: RolloutKeys
    ) -> Trajectory:
        play = functools.partial(self._collect, params, dialogue)
        starts = np.arange(self.num_parts, dtype=np.int32) * self._part_groups
        return self._join(
            run_concurrently(play, [self._cut(keys, start) for start in starts])
        )

    def lower(
        self, params: Params, dialogue: Dialogue, keys: RolloutKeys
    ) -> jax.stages.Lowered:
        part = jax.eval_shape(self._cut, keys, jnp.int32(0))
        return self._collect.lower(params, dialogue, part)

    def _join(self, parts: Sequence[Trajectory]) -> Trajectory:
        """All rows; joined by the host, which compiles nothing for it."""

        def join(*leaves: np.ndarray) -> Array:
            return jax.device_put(np.concatenate(leaves)[: self._num_rows], self._where)

        return jax.tree.map(join, *jax.device_get(list(parts)))


def run_concurrently(program: Callable[[T], R], parts: Sequence[T]) -> list[R]:
    """Finished results of a jitted program, several calls at a time.

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
    num_threads = min(len(parts), _num_cores() + 1)
    with concurrent.futures.ThreadPoolExecutor(num_threads) as threads:
        return list(threads.map(run, parts))


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cut(part_groups: int, keys: RolloutKeys, start: Int[Array, ""]) -> RolloutKeys:
    """The keys of a part from its first group on; the first groups follow the last."""
    num_groups = len(keys.level)
    group_size = len(keys.noise) // num_groups
    groups = (start + jnp.arange(part_groups)) % num_groups
    rows = (groups[:, None] * group_size + jnp.arange(group_size)[None]).ravel()
    return keys.replace(
        level=keys.level[groups], noise=keys.noise[rows], sample=keys.sample[rows]
    )
