"""A pocket model for games in Python, made from nothing on demonstrations of them.

    python -m launch.sft --config=configs/pocket_host.py --workdir=runs/pocket_host

Time: about 20 minutes on one CPU core (500 steps). Expected: it proves 62 % of the
held-out theorems, answers 15 % of the questions and solves 8 % of the word problems, of
easy ones each: proofs of up to three tactics, questions of one hop, problems of one
step with numbers up to 20. Reinforcement on the word problems (docs/results.md has the
command) takes the latter to 25 %. No such model is shipped.

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
    config.games.lean.kwargs = {"max_tactics": 3}
    config.games.lean.max_turns = 4
    config.games.search = _game(search.get_config(), episodes=24, demonstrations=6000)
    # Many worlds, so that names are copied and not learned by heart.
    config.games.search.kwargs = {"num_hops": 1, "num_worlds": 64, "max_searches": 2}
    config.games.search.max_turns = 3
    config.games.math = _game(mathqa.get_config(), episodes=32, demonstrations=12000)
    config.games.math.kwargs = {"num_steps": 1, "max_number": 20}
    # No worse players: a model of this size makes mistakes enough.
    config.demonstrators = ConfigDict()
    config.demonstrators.solver = pocket.demonstrator(
        "none", 0.05, share=1.0, first=1.0
    )
    config.mixture.first_part = 0.0
    config.model.max_position_embeddings = 4096
    config.train.num_steps = 500
    # Messages repeat names, which is how it learns to copy them.
    config.train.prompt_loss_weight = 1.0
    config.max_reply_tokens = 48
    config.evaluation.max_reply_tokens = 48
    return config


def _game(task: ConfigDict, *, episodes: int, demonstrations: int) -> ConfigDict:
    game = pocket.game(task, episodes=episodes)
    game.num_demonstrations = demonstrations
    return game
