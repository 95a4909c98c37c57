"""The pocket model: made from nothing, on demonstrations of all three games.

    python -m launch.sft --config=configs/pocket.py --workdir=runs/pocket

Time: about 15 minutes on 2 CPU cores (800 steps). Expected: held-out success of about
24 % on Sokoban, 33 % on FrozenLake and 40 % on Bandit, with 10 to 20 % of the episodes
thinking; `ragen_jax/pocket/README.md` has the scores of the shipped model, which this
command made. Writes a Hugging Face folder, `runs/pocket/model`.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import bandit, base, frozen_lake, sokoban


def get_config() -> ConfigDict:
    """Model, games, demonstrators and schedule."""
    defaults = base.get_config()
    config = ConfigDict()
    config.seed = 0

    # Wording of the rollouts that the model is made for: the defaults of base.py.
    config.prompt = defaults.prompt
    config.max_reply_tokens = defaults.rollout.max_reply_tokens

    config.model = _model()

    # Episodes of each game per step.
    config.games = ConfigDict()
    config.games.sokoban = game(sokoban.get_config(), episodes=22)
    config.games.frozen_lake = game(frozen_lake.get_config(), episodes=10)
    # The solver plans a turn as if the ice were not slippery.
    config.games.frozen_lake.planning_params = {"success_rate": 1.0}
    # Both sets of names, so that the model knows every word. Arms are chosen at random:
    # the demonstrations teach which name sounds risky, not that risk pays.
    config.games.bandit = game(bandit.get_config(), episodes=2)
    config.games.bandit.noise = 1.0
    config.games.bandit_test = game(bandit.get_config(), episodes=2)
    config.games.bandit_test.kwargs = {"split": "test"}
    config.games.bandit_test.noise = 1.0

    # Of games in Python, see `configs/base.py`; these have none.
    config.host = defaults.host

    config.demonstrators = _demonstrators()

    config.mixture = ConfigDict()
    # Chance, per turn after the first, that a newly drawn demonstrator takes over.
    config.mixture.redraw = 0.15
    # The first part of the steps uses `first_share`, to teach how to play; the rest
    # uses `share`, to make the model mediocre.
    config.mixture.first_part = 0.6
    # Discount of the solver: below 1 it prefers short paths where actions are free.
    config.mixture.discount = 0.95

    config.optimizer = _optimizer()

    config.train = ConfigDict()
    # Optimizer steps. None: as many as `num_epochs` take.
    config.train.num_steps = 800
    # Passes over the data sets. None: `num_steps` decides.
    config.train.num_epochs = placeholder(int)
    # Episodes per forward and backward pass, after sorting them by length.
    config.train.microbatch_episodes = 6
    # Tokens whose logits exist at a time; the backward pass computes them again. None:
    # all of a microbatch at once, faster for a small vocabulary.
    config.train.logprob_chunk_tokens = placeholder(int)
    # Weight in the loss of the tokens outside replies; a reply token has 1. Above 0
    # messages are learned, too, which teaches a new model to copy names.
    config.train.prompt_loss_weight = 0.0
    # Steps between lines on the console.
    config.train.log_every = 20
    # Steps between checkpoints.
    config.train.checkpoint_every = 50

    # Validation prompts that the model plays after training.
    config.evaluation = ConfigDict()
    config.evaluation.num_prompts = defaults.evaluation.num_prompts
    config.evaluation.max_reply_tokens = defaults.rollout.max_reply_tokens
    # Temperature of sampling on validation prompts.
    config.evaluation.temperature = defaults.evaluation.temperature
    config.evaluation.seed = defaults.evaluation.seed

    return config


def _model() -> ConfigDict:
    """A small Qwen-2.5; the keys are those of its config.json.

    The vocabulary is the tokenizer's; the output head is tied to the embedding.
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
    # Highest learning rate.
    optimizer.learning_rate = 2e-3
    # Steps in which the learning rate rises from 0.
    optimizer.warmup_steps = 50
    # Share of the learning rate at the last step, after a cosine.
    optimizer.final_fraction = 0.05
    # Decay of AdamW's mean of the gradients.
    optimizer.beta1 = 0.9
    # Decay of AdamW's mean of their squares.
    optimizer.beta2 = 0.98
    # Decoupled weight decay of AdamW.
    optimizer.weight_decay = 0.01
    # Bound on the global norm of the gradient.
    optimizer.max_grad_norm = 1.0
    return optimizer


def game(task: ConfigDict, *, episodes: int) -> ConfigDict:
    """A game with the rules of its task file, `episodes` of it per step."""
    game = ConfigDict()
    # Name in the table of `envs/__init__.py`.
    game.name = task.env.name
    # A game in Python in its place, see `configs/base.py`. Its episodes are played
    # before the first step, and demonstrators write no thoughts.
    game.host = placeholder(str)
    game.host = task.env.host
    # Constructor arguments of that environment.
    game.kwargs = task.env.kwargs.to_dict()
    # Episodes per step.
    game.episodes = episodes
    # Episodes of the data set. None: every step plays new episodes.
    game.num_demonstrations = placeholder(int)
    # Replies per episode.
    game.max_turns = task.rollout.max_turns
    # Actions run from one reply.
    game.max_actions_per_turn = task.rollout.max_actions_per_turn
    # Actions run in one episode.
    game.max_actions_per_episode = task.rollout.max_actions_per_episode
    # What a player sees of the dialogue, see `configs/base.py`. Other than "full",
    # every turn is a row of the batch, with its prompt.
    game.context = task.rollout.context
    # Turns it sees; None for "full".
    game.context_turns = placeholder(int)
    game.context_turns = task.rollout.context_turns
    # Values of `EnvParams` that differ from the environment's defaults.
    game.params = task.env.params.to_dict()
    # Further values, which the demonstrators plan with.
    game.planning_params = {}
    # Replaces the noise of every demonstrator. None: keep theirs.
    game.noise = placeholder(float)
    return game


def demonstrator(
    thought: str, noise: float, *, share: float, first: float
) -> ConfigDict:
    """A style of thought, a chance of random actions, and shares of the episodes."""
    demonstrator = ConfigDict()
    # What the thought says, an entry of THOUGHTS in
    # `ragen_jax/rollout/demonstrators.py`.
    demonstrator.thought = thought
    # Chance that an action is random instead of the solver's.
    demonstrator.noise = noise
    # Share of the episodes that it plays, after the first part.
    demonstrator.share = share
    # Share of the episodes in the first part of the steps.
    demonstrator.first_share = first
    return demonstrator
