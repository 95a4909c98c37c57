"""The pocket model of the newer games, made from nothing on demonstrations of them.

    python -m launch.sft --config=configs/pocket_worlds.py --workdir=runs/pocket_worlds

Shape, demonstrators and schedule are those of `configs/pocket.py`, but for the longer
replies of games whose actions are written in digits.
"""

from ml_collections import ConfigDict

from configs import countdown, cube2x2, pocket, sudoku


def get_config() -> ConfigDict:
    """Model, games, demonstrators and schedule."""
    config = pocket.get_config()
    config.games = ConfigDict()
    config.games.countdown = pocket.game(countdown.get_config(), episodes=12)
    config.games.cube2x2 = pocket.game(cube2x2.get_config(), episodes=12)
    config.games.sudoku = pocket.game(sudoku.get_config(), episodes=12)
    config.max_reply_tokens = 48
    config.evaluation.max_reply_tokens = 48
    return config
