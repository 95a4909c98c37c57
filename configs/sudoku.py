"""Sudoku, 4x4 with four to eight empty cells.

python -m launch.train --config=configs/sudoku.py --workdir=runs/sudoku

Ten actions are allowed; a level needs one for each empty cell. 9x9:
--config.env.kwargs.size=9 with --config.prompt.tokenization=symbols and as many turns
and actions as cells are empty.

Measured with the pocket model, seed 0: success on 256 held-out levels rises from 38 to
61 % in 20 iterations; best play reaches 100 %.

Presets (`configs/sizes.py`): --config=configs/sudoku.py:qwen2.5-0.5b,starpo_s,grpo
"""

from ml_collections import ConfigDict

from configs import base, sizes


def get_config(presets: str = "pocket") -> ConfigDict:
    """Sudoku with presets such as "pocket,starpo_s" (see `configs/sizes.py`)."""
    config = base.get_config()
    config.env.name = "sudoku"
    sizes.apply_presets(config, presets)
    if sizes.use_built_in(config, "pocket_worlds"):
        # More iterations gain nothing.
        config.train.num_iterations = 20
    # Four placements in the pocket model's tokens, and a thought.
    config.rollout.max_reply_tokens = max(config.rollout.max_reply_tokens, 48)
    return config
