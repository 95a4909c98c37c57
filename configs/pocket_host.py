"""The pocket model of three host games, made from nothing on demonstrations.

    python -m launch.sft --config=configs/pocket_host.py --workdir=runs/pocket_host

Time: 20 to 35 minutes on 2 CPU cores (900 steps). `ragen_jax/pocket_host/README.md` has
the scores of the shipped model, which this command made.

Shape and schedule are those of `configs/pocket.py`. Demonstrators reply as the games'
own solutions say and write no thoughts.
"""

from ml_collections import ConfigDict

from configs import lean, mathqa, pocket, search


def get_config() -> ConfigDict:
    """Model, games, demonstrators and schedule."""
    config = pocket.get_config()
    config.host.max_observation_tokens = 160
    config.games = ConfigDict()
    config.games.lean = _game(lean.get_config(), episodes=10, demonstrations=3000)
    config.games.search = _game(search.get_config(), episodes=32, demonstrations=8000)
    config.games.math = _game(mathqa.get_config(), episodes=24, demonstrations=12000)
    config.demonstrators = ConfigDict()
    config.demonstrators.solver = pocket.demonstrator("none", 0.0, share=0.4, first=1.0)
    # Its replies are those of another problem.
    config.demonstrators.guesser = pocket.demonstrator(
        "none", 0.8, share=0.6, first=0.0
    )
    config.mixture.first_part = 0.8
    config.model.max_position_embeddings = 4096
    config.train.num_steps = 900
    # Messages repeat names, which is how it learns to copy them.
    config.train.prompt_loss_weight = 1.0
    config.max_reply_tokens = 48
    config.evaluation.max_reply_tokens = 48
    return config


def _game(task: ConfigDict, *, episodes: int, demonstrations: int) -> ConfigDict:
    game = pocket.game(task, episodes=episodes)
    game.num_demonstrations = demonstrations
    return game
