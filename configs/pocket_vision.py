"""The pocket model that sees: made from nothing, on boards shown as pictures.

    python -m launch.sft --config=configs/pocket_vision.py --workdir=runs/pocket_vision

Time and scores: `ragen_jax/pocket_vision/README.md`, about the shipped model that this
command made. Writes a Hugging Face folder, `runs/pocket_vision/model`.
"""

from ml_collections import ConfigDict

from configs import pocket


def get_config() -> ConfigDict:
    """`configs/pocket.py` with a tower and pictures; of its games those with boards."""
    config = pocket.get_config()
    config.prompt.observation = "image"
    config.model.vision_layers = 2
    # Rows and columns are a few tokens apart, where text is hundreds: with the usual
    # 10,000 the heads turn too little to tell a column from the next.
    config.model.rope_theta = 100.0
    del config.games["bandit"], config.games["bandit_test"]
    config.games.sokoban.episodes = 24
    config.games.frozen_lake.episodes = 12
    return config
