"""Bandit: one choice between a safe and a risky arm, known only by their names.

python -m launch.train --config=configs/bandit.py --workdir=runs/bandit
"""

from ml_collections import ConfigDict

from configs import base, sizes


def get_config(size: str = "pocket") -> ConfigDict:
    """Bandit at the given size preset (see `configs/sizes.py`)."""
    config = base.get_config()
    config.env.name = "bandit"
    sizes.apply_size(config, size)
    config.rollout.max_turns = 1
    config.rollout.max_actions_per_turn = 1
    config.rollout.max_actions_per_episode = 1
    return config
