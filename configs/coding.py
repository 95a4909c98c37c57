"""DeepCoder: programs judged by tests.

python -m launch.train --config=configs/coding.py --workdir=runs/coding

Runs programs in processes without files and network, on Linux. See docs/host_games.md.

The pocket model has not been shown this game: start from a real checkpoint, with
presets such as --config=configs/coding.py:qwen2.5-0.5b,starpo_s,grpo
"""

from ml_collections import ConfigDict

from configs import base, sizes


def get_config(presets: str = "pocket") -> ConfigDict:
    """DeepCoder with presets such as "pocket,starpo_s" (see `configs/sizes.py`)."""
    config = base.get_config()
    sizes.apply_presets(config, presets)
    sizes.play_in_python(config, "coding", max_turns=1)
    config.host.max_observation_tokens = 512
    config.rollout.max_reply_tokens = max(config.rollout.max_reply_tokens, 256)
    return config
