"""ALFWorld: tasks in a household, by commands.

python -m launch.train --config=configs/alfworld.py --workdir=runs/alfworld

ALFWorld's files: "--config.env.kwargs={'data': 'json_2.1.1'}". See docs/host_games.md.

The pocket model has not been shown this game: start from a real checkpoint, with
presets such as --config=configs/alfworld.py:qwen2.5-0.5b,starpo_s,grpo
"""

from ml_collections import ConfigDict

from configs import base, sizes


def get_config(presets: str = "pocket") -> ConfigDict:
    """ALFWorld with presets such as "pocket,starpo_s" (see `configs/sizes.py`)."""
    config = base.get_config()
    sizes.apply_presets(config, presets)
    sizes.play_in_python(config, "alfworld", max_turns=10)
    config.rollout.max_reply_tokens = max(config.rollout.max_reply_tokens, 32)
    config.host.max_observation_tokens = 144
    config.rollout.context = "single_turn"
    config.learner.share_prompts = False
    config.rollout.context_turns = 3
    return config
