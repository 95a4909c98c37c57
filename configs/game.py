"""Any array game: --config.env.name=package.module:Class, or a name.

python -m launch.train --config=configs/game.py --config.env.name=walk:Walk
--workdir=runs/walk

Three turns of up to four actions, ten in all; see docs/environments.md.

Presets (`configs/sizes.py`): --config=configs/game.py:qwen2.5-0.5b,starpo_s,grpo
"""

from ml_collections import ConfigDict

from configs import base, sizes


def get_config(presets: str = "pocket") -> ConfigDict:
    """An array game with presets such as "pocket,starpo_s"."""
    config = base.get_config()
    sizes.apply_presets(config, presets)
    # The pocket model spells names of actions that it does not know.
    config.rollout.max_reply_tokens = max(config.rollout.max_reply_tokens, 48)
    return config
