"""The 2x2x2 cube, one to four quarter turns from solved.

python -m launch.train --config=configs/cube2x2.py --workdir=runs/cube2x2

Other distances, up to 14: --config.env.kwargs.min_distance=5
--config.env.kwargs.max_distance=6.

The pocket model has never seen this game: it learns nothing here yet, use a real one.
Presets (`configs/sizes.py`): --config=configs/cube2x2.py:qwen2.5-0.5b,starpo_s,grpo
"""

from ml_collections import ConfigDict

from configs import base, sizes


def get_config(presets: str = "pocket") -> ConfigDict:
    """The cube with presets such as "pocket,starpo_s" (see `configs/sizes.py`)."""
    config = base.get_config()
    config.env.name = "cube2x2"
    sizes.apply_presets(config, presets)
    return config
