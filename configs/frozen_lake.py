"""FrozenLake, 4x4, slippery (success rate 0.8): moves may slip sideways.

python -m launch.train --config=configs/frozen_lake.py --workdir=runs/frozen_lake
"""

from ml_collections import ConfigDict

from configs import base, sizes


def get_config(size: str = "pocket") -> ConfigDict:
    """FrozenLake at the given size preset (see `configs/sizes.py`)."""
    config = base.get_config()
    config.env.name = "frozen_lake"
    sizes.apply_size(config, size)
    return config
