"""One batch from the rollouts of several environments.

In: a trajectory per environment. Out: one trajectory with all their rows, in order. The
learner sees a mix as this trajectory; `env_index`, not the padding, names the
environment of a row.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array

from ragen_jax.types import Trajectory, Windows

# Padding of shorter trajectories: it is neither read nor trained on nor counted.
_PADDING = {
    "tokens": 0,
    "loss_mask": False,
    "turn_index": -1,
    "sample_log_probs": 0.0,
}
_WINDOW_PADDING = {"tokens": 0}

T = TypeVar("T", Trajectory, Windows)


def make_join(sharding: NamedSharding) -> Callable[[Sequence[Trajectory]], Trajectory]:
    """`join_rollouts`, compiled; a single rollout is the batch as it is.

    Args:
      sharding: of the batch, along its rows.
    """
    compiled = jax.jit(join_rollouts, out_shardings=sharding)
    return lambda rollouts: rollouts[0] if len(rollouts) == 1 else compiled(rollouts)


def join_rollouts(rollouts: Sequence[Trajectory]) -> Trajectory:
    """All rows of several trajectories, those of the first one first.

    Token arrays are padded to the longest `T`, windows to the longest `W`. `env_index`
    is the position in `rollouts`; `initial_state` is None, as states of
    different environments cannot be joined.

    Raises:
      ValueError: the numbers of turns or of actions per turn differ.
    """
    shapes = [rollout.turns.actions.shape[1:] for rollout in rollouts]
    if len(set(shapes)) > 1:
        raise ValueError(
            f"rollouts of (turns, actions per turn) {shapes} cannot be joined; play "
            "all environments with one budget"
        )
    parts = [
        rollout.replace(
            initial_state=None,
            env_index=jnp.full(rollout.lengths.shape, i, jnp.int32),
        )
        for i, rollout in enumerate(rollouts)
    ]
    parts = _pad(parts, _PADDING)
    if parts[0].windows is not None:
        windows = _pad([part.windows for part in parts], _WINDOW_PADDING)
        pairs = zip(parts, windows, strict=True)
        parts = [part.replace(windows=padded) for part, padded in pairs]
    return jax.tree.map(lambda *columns: jnp.concatenate(columns), *parts)


def interleave(samples: Sequence[Trajectory]) -> Trajectory:
    """One trajectory of several samples of the same prompts, on one device."""

    def join(*leaves: np.ndarray) -> Array:
        rows = np.stack(leaves, axis=1).reshape(-1, *leaves[0].shape[1:])
        return jnp.asarray(rows)

    # Each sample numbers its images from 0.
    samples = [sample.replace(images=None) for sample in samples]
    return jax.tree.map(join, *jax.device_get(samples))


def _pad(parts: Sequence[T], padding: Mapping[str, object]) -> list[T]:
    longest = max(part.tokens.shape[-1] for part in parts)

    def fill(x, value):
        widths = [(0, 0)] * (x.ndim - 1) + [(0, longest - x.shape[-1])]
        return jnp.pad(x, widths, constant_values=value)

    return [
        part.replace(**{n: fill(getattr(part, n), v) for n, v in padding.items()})
        for part in parts
    ]
