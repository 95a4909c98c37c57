"""The measurement of the leaderboard, for models of any size: the limits of `sokoban`.

python -m launch.evaluate --config=configs/leaderboard.py:qwen2.5-0.5b --suite=all \
    --json=docs/leaderboard/NAME.json

A preset sets wording, reply length and decoding, which belong to a policy, and limits
on turns and actions, which here are those of the pocket model's rows; see
docs/evaluation.md.

Presets (`configs/sizes.py`): --config=configs/leaderboard.py:qwen3-4b
"""

from ml_collections import ConfigDict

from configs import base, sokoban


def get_config(presets: str = "pocket") -> ConfigDict:
    """Sokoban with presets, and the limits and prompts of `base`."""
    config, defaults = sokoban.get_config(presets), base.get_config()
    for name in ("max_turns", "max_actions_per_turn", "max_actions_per_episode"):
        config.rollout[name] = defaults.rollout[name]
    for name in ("num_prompts", "num_samples", "seed"):
        config.evaluation[name] = defaults.evaluation[name]
    return config
