"""Former name of `ragen_jax.host_games.alfworld.check`."""

import sys
import warnings

from ragen_jax.host_games.alfworld.check import main

warnings.warn(
    "ragen_jax.worlds.alfworld_check is now ragen_jax.host_games.alfworld.check",
    FutureWarning,
    stacklevel=2,
)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
