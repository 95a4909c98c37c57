"""FrozenLake, 4x4, slippery (success rate 0.8): moves may slip sideways.

python -m launch.train --config=configs/frozen_lake.py --workdir=runs/frozen_lake

About two minutes on two idle CPU cores. Expected: success on 256 held-out levels rises
from 37 % to above 65 %; best play reaches 94 % (docs/results.md).

Presets (`configs/sizes.py`): --config=configs/frozen_lake.py:pocket,starpo_s,grpo
"""

from ml_collections import ConfigDict

from configs import base, sizes


def get_config(presets: str = "pocket") -> ConfigDict:
    """FrozenLake with presets such as "pocket,starpo_s" (see `configs/sizes.py`)."""
    config = base.get_config()
    config.env.name = "frozen_lake"
    sizes.apply_presets(config, presets)
    return config
