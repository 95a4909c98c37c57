"""Bandit: one choice between a safe and a risky arm, known only by their names.

python -m launch.train --config=configs/bandit.py --workdir=runs/bandit

Half a minute on two idle CPU cores. Expected: the better arm is chosen in 100 % of 256
games, 40 % before; there are only 24 levels, so none is held out (docs/results.md).

Presets (`configs/sizes.py`): --config=configs/bandit.py:pocket,starpo_s,grpo
"""

from ml_collections import ConfigDict

from configs import base, sizes


def get_config(presets: str = "pocket") -> ConfigDict:
    """Bandit with presets such as "pocket,starpo_s" (see `configs/sizes.py`)."""
    config = base.get_config()
    config.env.name = "bandit"
    sizes.apply_presets(config, presets)
    config.rollout.max_turns = 1
    config.rollout.max_actions_per_turn = 1
    config.rollout.max_actions_per_episode = 1
    return config
