"""The pocket model of three games in Python, made from nothing on demonstrations.

    python -m launch.sft --config=configs/pocket_host.py --workdir=runs/pocket_host

Shape and schedule are those of `configs/pocket.py`. Demonstrators reply as the games'
own solutions say, with slips, and write no thoughts.
"""

from ml_collections import ConfigDict

from configs import base, lean, pocket, search, webshop


def get_config() -> ConfigDict:
    """Model, games, demonstrators and schedule."""
    config = pocket.get_config()
    config.host = base.get_config().host
    config.host.max_observation_tokens = 160
    config.games = ConfigDict()
    config.games.lean = _game(lean.get_config(), episodes=14)
    config.games.search = _game(search.get_config(), episodes=16)
    config.games.webshop = _game(webshop.get_config(), episodes=6)
    # The first half of the steps teaches to play, the rest to play badly.
    config.demonstrators = ConfigDict()
    config.demonstrators.solver = pocket.demonstrator("none", 0.1, share=0.3, first=1.0)
    config.demonstrators.slipper = pocket.demonstrator(
        "none", 0.6, share=0.7, first=0.0
    )
    config.mixture.first_part = 0.8
    config.train.num_steps = 450
    config.train.microbatch_episodes = 6
    config.max_reply_tokens = 48
    config.evaluation.max_reply_tokens = 48
    return config


def _game(task: ConfigDict, *, episodes: int) -> ConfigDict:
    game = pocket.game(task, episodes=episodes)
    game.num_demonstrations = 2000
    return game
