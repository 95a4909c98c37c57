"""Supervised warm start of the pocket model, on demonstrations of all three games.

    python -m launch.sft --config=configs/pocket.py --workdir=runs/pocket

About 15 minutes on 2 CPU cores. Writes a Hugging Face folder, `runs/pocket/model`; the
one shipped in `ragen_jax/pocket` was made so (see its README for the scores).
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import bandit, base, frozen_lake, sokoban


def get_config() -> ConfigDict:
    """Model, games, demonstrators and schedule of the warm start."""
    defaults = base.get_config()
    config = ConfigDict()
    config.seed = 0

    # Text of the rollouts this model is for: the defaults of base.py.
    config.prompt = defaults.prompt
    config.max_reply_tokens = defaults.rollout.max_reply_tokens

    config.model = _model()

    # Episodes of each game per step.
    config.games = ConfigDict()
    config.games.sokoban = game(sokoban.get_config(), episodes=22)
    config.games.frozen_lake = game(frozen_lake.get_config(), episodes=10)
    # A turn is planned as if nobody slipped.
    config.games.frozen_lake.planning_params = {"success_rate": 1.0}
    # Both sets of names, so that the model has met every word once. Arms are taken
    # at random: the warm start teaches which name sounds risky, not that risk pays.
    config.games.bandit = game(bandit.get_config(), episodes=2)
    config.games.bandit.noise = 1.0
    config.games.bandit_test = game(bandit.get_config(), episodes=2)
    config.games.bandit_test.kwargs = {"split": "test"}
    config.games.bandit_test.noise = 1.0

    config.demonstrators = _demonstrators()

    config.mixture = ConfigDict()
    # Chance, per turn after the first, that a newly drawn demonstrator takes over.
    config.mixture.redraw = 0.15
    # The first part of the steps uses `first_share`: learn to play; then `share`:
    # learn to be mediocre.
    config.mixture.first_part = 0.6
    # Discount of the solver: below 1 it prefers short ways where actions are free.
    config.mixture.discount = 0.95

    config.optimizer = _optimizer()

    config.train = ConfigDict()
    # Optimizer steps. None: as many as `num_epochs` take.
    config.train.num_steps = 800
    # Times every episode of the data sets is learned from. None: `num_steps` counts.
    config.train.num_epochs = placeholder(int)
    # Episodes per forward and backward pass; they are sorted by length first.
    config.train.microbatch_episodes = 6
    # Tokens whose logits exist at a time; they are computed twice then. None: all of a
    # microbatch at once, faster where the vocabulary is small.
    config.train.logprob_chunk_tokens = placeholder(int)
    # Steps between lines of the log, and between checkpoints.
    config.train.log_every = 20
    config.train.checkpoint_every = 50

    # Afterwards the model plays these levels itself.
    config.evaluation = ConfigDict()
    config.evaluation.num_prompts = defaults.evaluation.num_prompts
    config.evaluation.max_reply_tokens = defaults.rollout.max_reply_tokens
    config.evaluation.temperature = defaults.evaluation.temperature
    config.evaluation.seed = defaults.evaluation.seed

    return config


def _model() -> ConfigDict:
    """A small Qwen-2.5; names are those of its config.json.

    The vocabulary is the tokenizer's, the output head is tied to the embedding.
    """
    model = ConfigDict()
    model.hidden_size = 128
    model.intermediate_size = 384
    model.num_hidden_layers = 4
    model.num_attention_heads = 4
    model.num_key_value_heads = 2
    model.rope_theta = 10_000.0
    model.max_position_embeddings = 2048
    model.initializer_range = 0.06
    return model


def _demonstrators() -> ConfigDict:
    """The mixture; the styles: `ragen_jax/rollout/demonstrators.py`."""
    demonstrators = ConfigDict()
    demonstrators.solver = demonstrator("reading", 0.0, share=0.25, first=0.88)
    demonstrators.guesser = demonstrator("none", 0.9, share=0.61, first=0.06)
    demonstrators.skimmer = demonstrator("shallow", 0.7, share=0.09, first=0.04)
    demonstrators.pretender = demonstrator("misreading", 0.9, share=0.05, first=0.02)
    return demonstrators


def _optimizer() -> ConfigDict:
    """AdamW with linear warm-up and a cosine down to `final_fraction` of the peak."""
    optimizer = ConfigDict()
    optimizer.learning_rate = 2e-3
    optimizer.warmup_steps = 50
    optimizer.final_fraction = 0.05
    optimizer.beta1 = 0.9
    optimizer.beta2 = 0.98
    optimizer.weight_decay = 0.01
    optimizer.max_grad_norm = 1.0
    return optimizer


def game(task: ConfigDict, *, episodes: int) -> ConfigDict:
    """A game as its task file plays it, `episodes` of it per step."""
    game = ConfigDict()
    # Name and constructor arguments, as in `envs.make`.
    game.name = task.env.name
    game.kwargs = task.env.kwargs.to_dict()
    # Per step; and how many different ones there are. None: every step plays new ones.
    game.episodes = episodes
    game.num_demonstrations = placeholder(int)
    game.max_turns = task.rollout.max_turns
    game.max_actions_per_turn = task.rollout.max_actions_per_turn
    game.max_actions_per_episode = task.rollout.max_actions_per_episode
    # Values of `EnvParams` that differ from the environment's own defaults, and those
    # that the demonstrators believe in, on top, while they plan.
    game.params = task.env.params.to_dict()
    game.planning_params = {}
    # In place of every demonstrator's own noise. None = off.
    game.noise = placeholder(float)
    return game


def demonstrator(
    thought: str, noise: float, *, share: float, first: float
) -> ConfigDict:
    """A style of thought, a chance of random actions, a share of the episodes."""
    demonstrator = ConfigDict()
    demonstrator.thought = thought
    demonstrator.noise = noise
    demonstrator.share = share
    demonstrator.first_share = first
    return demonstrator
