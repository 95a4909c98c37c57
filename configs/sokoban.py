"""Sokoban, 6x6 with one box: the task of the paper's main figures.

python -m launch.train --config=configs/sokoban.py --workdir=runs/sokoban

About three minutes on two idle CPU cores. Expected: success on 256 held-out levels
rises from 27 % to above 55 %; best play reaches 100 % (docs/results.md).

Presets (`configs/sizes.py`): --config=configs/sokoban.py:pocket,starpo_s,grpo
"""

from ml_collections import ConfigDict

from configs import base, sizes


def get_config(presets: str = "pocket") -> ConfigDict:
    """Sokoban with presets such as "pocket,starpo_s" (see `configs/sizes.py`)."""
    config = base.get_config()
    config.env.name = "sokoban"
    sizes.apply_presets(config, presets)
    return config
