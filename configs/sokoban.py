"""Sokoban, 6x6 with one box: the task of the paper's main figures.

python -m launch.train --config=configs/sokoban.py --workdir=runs/sokoban
"""

from ml_collections import ConfigDict

from configs import base, sizes


def get_config(size: str = "pocket") -> ConfigDict:
    """Sokoban at the given size preset (see `configs/sizes.py`)."""
    config = base.get_config()
    config.env.name = "sokoban"
    sizes.apply_size(config, size)
    return config
