"""The 2x2x2 cube, one to three quarter turns from solved.

python -m launch.train --config=configs/cube2x2.py --workdir=runs/cube2x2

Other distances, up to 14: --config.env.kwargs.min_distance=5
--config.env.kwargs.max_distance=6.

Measured with the pocket model, seeds 0 and 1: success on 256 held-out levels rises from
38 to 71 and 87 % in 20 iterations; best play reaches 100 %.

Presets (`configs/sizes.py`): --config=configs/cube2x2.py:qwen2.5-0.5b,starpo_s,grpo
"""

from ml_collections import ConfigDict

from configs import base, sizes


def get_config(presets: str = "pocket") -> ConfigDict:
    """The cube with presets such as "pocket,starpo_s" (see `configs/sizes.py`)."""
    config = base.get_config()
    config.env.name = "cube2x2"
    config.env.kwargs.max_distance = 3
    sizes.apply_presets(config, presets)
    if sizes.use_built_in(config, "pocket_worlds"):
        # More iterations gain nothing.
        config.train.num_iterations = 20
    # A thought that names six stickers takes 24.
    config.rollout.max_reply_tokens = max(config.rollout.max_reply_tokens, 40)
    return config
