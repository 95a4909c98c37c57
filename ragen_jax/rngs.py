"""Named random streams.

One root key per run. An iteration's key is `fold_in(stream(root, "step"), iteration)`;
from it comes one key per stream, and from those one per row, so a row's random numbers
do not depend on its neighbours, and a resumed run draws exactly what the uninterrupted
one would have drawn.
"""

import jax
import numpy as np
from jaxtyping import Array, Key

# The position in this table is folded into the key: append, never reorder.
STREAMS = (
    "level",  # level of a group
    "noise",  # slips and payouts during play, per row
    "sample",  # the sampler's draws, per row
    "shuffle",  # order of the rows in an epoch
    "init",  # parameters made from nothing
    "evaluation",  # root of the validation prompts; their seed is never training's
    "demonstration",  # supervised warm start
    "step",  # root of the iterations
    "environment",  # roots of the second and further environments of a mix
    "diagnostics",  # sample of turns
    "resample",  # roots of the second and further samples of a validation prompt
    "bootstrap",  # resamples of intervals over runs
    "permutation",  # of runs in tests
)


def root_key(seed: int) -> Key[Array, ""]:
    """Root key of a run."""
    return jax.random.key(seed)


def step_key(root: Key[Array, ""], step) -> Key[Array, ""]:
    """Key of one iteration. `step` may be traced."""
    return jax.random.fold_in(stream(root, "step"), step)


def stream(key: Key[Array, ""], name: str) -> Key[Array, ""]:
    """Key of a named stream.

    Raises:
      ValueError: the name is not in `STREAMS`.
    """
    if name not in STREAMS:
        raise ValueError(f"no random stream {name!r}; streams are {', '.join(STREAMS)}")
    return jax.random.fold_in(key, STREAMS.index(name))


def environment_key(key: Key[Array, ""], index: int) -> Key[Array, ""]:
    """Key of an environment of a mix; the first has the key of a run without a mix."""
    if index == 0:
        return key
    return jax.random.fold_in(stream(key, "environment"), index)


def rows(key: Key[Array, ""], num_rows: int) -> Key[Array, " num_rows"]:
    """One key per row; the key of row `i` does not depend on `num_rows`."""
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(
        key, np.arange(num_rows, dtype=np.int32)
    )


def sample_key(key: Key[Array, ""], index: int) -> Key[Array, ""]:
    """Key of the i-th sample of every prompt; the first has the key of a single one."""
    if index == 0:
        return key
    return jax.random.fold_in(stream(key, "resample"), index)
