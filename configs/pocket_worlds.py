"""The pocket model of the newer games, made from nothing on demonstrations of them.

    python -m launch.sft --config=configs/pocket_worlds.py --workdir=runs/pocket_worlds

Shape, demonstrators and schedule are those of `configs/pocket.py`, but for the longer
replies of games whose actions are written in digits.
"""

from ml_collections import ConfigDict

from configs import countdown, cube2x2, game2048, pocket, sudoku


def get_config() -> ConfigDict:
    """Model, games, demonstrators and schedule."""
    config = pocket.get_config()
    config.games = ConfigDict()
    config.games.countdown = pocket.game(countdown.get_config(), episodes=22)
    config.games.cube2x2 = pocket.game(cube2x2.get_config(), episodes=20)
    # Cubes near the solved one are few enough to be memorised, each with its thought;
    # these the model has to learn to read.
    config.games.cube2x2_far = pocket.game(cube2x2.get_config(), episodes=10)
    config.games.cube2x2_far.kwargs = {"min_distance": 4, "max_distance": 9}
    config.games.sudoku = pocket.game(sudoku.get_config(), episodes=20)
    config.games.game2048 = pocket.game(game2048.get_config(), episodes=2)
    # These games are won by few random players: more of the solver, for longer.
    config.demonstrators.solver.share = 0.4
    config.demonstrators.guesser.share = 0.46
    config.mixture.first_part = 0.7
    config.train.num_steps = 1000
    config.train.microbatch_episodes = 8
    config.max_reply_tokens = 48
    config.evaluation.max_reply_tokens = 48
    return config
