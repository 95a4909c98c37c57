"""The pocket model of three games in Python, made from nothing on demonstrations.

    python -m launch.sft --config=configs/pocket_host.py --workdir=runs/pocket_host

Shape and schedule are those of `configs/pocket.py`. Demonstrators reply as the games'
own solutions say, with slips, and write no thoughts.
"""

from ml_collections import ConfigDict

from configs import alfworld, base, lean, pocket, search


def get_config() -> ConfigDict:
    """Model, games, demonstrators and schedule."""
    config = pocket.get_config()
    config.host = base.get_config().host
    config.host.max_observation_tokens = 160
    config.games = ConfigDict()
    config.games.lean = _game(lean.get_config(), episodes=12, demonstrations=1500)
    config.games.search = _game(search.get_config(), episodes=22, demonstrations=1500)
    config.games.alfworld = _game(alfworld.get_config(), episodes=8, demonstrations=800)
    # A model of this size is mediocre without worse players.
    config.demonstrators = ConfigDict()
    config.demonstrators.solver = pocket.demonstrator("none", 0.1, share=1.0, first=1.0)
    config.mixture.first_part = 0.0
    config.model.max_position_embeddings = 4096
    config.train.num_steps = 400
    config.train.microbatch_episodes = 6
    # Messages repeat names, which is how it learns to copy them.
    config.train.prompt_loss_weight = 1.0
    config.max_reply_tokens = 48
    config.evaluation.max_reply_tokens = 48
    return config


def _game(task: ConfigDict, *, episodes: int, demonstrations: int) -> ConfigDict:
    game = pocket.game(task, episodes=episodes)
    game.num_demonstrations = demonstrations
    return game
