"""Any host game: --config.env.host=package.module:Class, or a name.

python -m launch.train --config=configs/world.py --config.env.host=echo
--workdir=runs/echo

Up to ten replies an episode; see docs/host_games.md.

Presets (`configs/sizes.py`): --config=configs/world.py:qwen2.5-0.5b,starpo_s,grpo
"""

from ml_collections import ConfigDict

from configs import base, sizes


def get_config(presets: str = "pocket") -> ConfigDict:
    """A host game with presets such as "pocket,starpo_s"."""
    config = base.get_config()
    sizes.apply_presets(config, presets)
    sizes.play_in_python(config, "echo", max_turns=10)
    config.host.max_observation_tokens = 128
    return config
