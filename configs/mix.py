"""Sokoban and FrozenLake in one batch, half of the groups each.

python -m launch.train --config=configs/mix.py --workdir=runs/mix

Training and validation are reported per game. About as long as one game with as many
groups. Expected, of seed 0: held-out success rises from 27 % to 57 % on Sokoban and
from 37 % to 71 % on FrozenLake. Other games: `config.env.mix`, explained in
`configs/base.py`.
"""

from ml_collections import ConfigDict

from configs import base, sizes


def get_config(presets: str = "pocket") -> ConfigDict:
    """Both games with presets such as "pocket,starpo_s" (see `configs/sizes.py`)."""
    config = base.get_config()
    sizes.apply_presets(config, presets)
    half = config.rollout.num_groups // 2
    # What a preset says of boards, an entry says itself.
    shown, config.env.kwargs = config.env.kwargs.to_dict(), ConfigDict()
    rules = ({"kwargs": shown},) if shown else ()
    config.env.mix = (("sokoban", half, *rules), ("frozen_lake", half, *rules))
    return config
