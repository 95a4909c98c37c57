"""Former name of `ragen_jax.host_games.base`."""

import warnings

from ragen_jax.host_games.base import *  # noqa: F403
from ragen_jax.host_games.base import MissingRequirement as CannotPlayHere  # noqa: F401

warnings.warn(
    "ragen_jax.worlds.base is now ragen_jax.host_games.base",
    FutureWarning,
    stacklevel=2,
)
