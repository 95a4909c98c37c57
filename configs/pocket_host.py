"""A pocket model for games in Python, made from nothing on demonstrations of them.

    python -m launch.sft --config=configs/pocket_host.py --workdir=runs/pocket_host
    python -m launch.train --config=configs/lean.py --workdir=runs/lean \
        --config.model.path=runs/pocket_host/model

Shape and schedule are those of `configs/pocket.py`. Demonstrators reply as the games'
own solutions say and write no thoughts. No such model is shipped: it takes about half
an hour on 2 cores, proves 37 % of Lean's held-out theorems and hardly wins the other
two games (`docs/finetuning.md`).
"""

from ml_collections import ConfigDict

from configs import alfworld, lean, pocket, search


def get_config() -> ConfigDict:
    """Model, games, demonstrators and schedule."""
    config = pocket.get_config()
    config.host.max_observation_tokens = 160
    config.games = ConfigDict()
    config.games.lean = _game(lean.get_config(), episodes=12, demonstrations=1500)
    config.games.search = _game(search.get_config(), episodes=22, demonstrations=1500)
    house = alfworld.get_config()
    house.rollout.context = "full"
    house.rollout.context_turns = None
    config.games.alfworld = _game(house, episodes=8, demonstrations=800)
    # No worse players: a model of this size makes mistakes enough.
    config.demonstrators = ConfigDict()
    config.demonstrators.solver = pocket.demonstrator("none", 0.1, share=1.0, first=1.0)
    config.mixture.first_part = 0.0
    config.model.max_position_embeddings = 4096
    config.train.num_steps = 400
    # Messages repeat names, which is how it learns to copy them.
    config.train.prompt_loss_weight = 1.0
    config.max_reply_tokens = 48
    config.evaluation.max_reply_tokens = 48
    return config


def _game(task: ConfigDict, *, episodes: int, demonstrations: int) -> ConfigDict:
    game = pocket.game(task, episodes=episodes)
    game.num_demonstrations = demonstrations
    return game
