"""Defaults of every run, the only place that has any.

A task file (`configs/sokoban.py`) imports `get_config` from here and changes a few
lines. Override any key on the command line: `--config.rollout.num_groups=16`. The names
of the keys are fixed: scripts rely on them.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
    """The default configuration: StarPO-S with GRPO, sized for the pocket model."""
    config = ConfigDict()

    # Root of all randomness. Same seed, same machine: same bits.
    config.seed = 0

    config.env = ConfigDict()
    # Name in the table of `envs/__init__.py`.
    config.env.name = "sokoban"
    # Constructor arguments of that environment (sizes, symbols, observation, ...);
    # on the command line "--config.env.kwargs={'num_boxes': 2}".
    config.env.kwargs = ConfigDict()
    # Values of its `EnvParams` that differ from the environment's own defaults.
    config.env.params = ConfigDict()

    config.prompt = ConfigDict()
    # Wording: "full" for real models, "terse" for the pocket model.
    config.prompt.style = "terse"
    # "symbols": one token per cell, any board. "rows": one piece per board row, ids
    # equal to the tokenizer's own; for checkpoints pre-trained on such text.
    config.prompt.tokenization = "symbols"
    # Length hint shown to the model in the full wording (words).
    config.prompt.length_hint_words = 100

    config.model = ConfigDict()
    # "pocket" (the built-in model), a folder in Hugging Face layout, or a hub id.
    config.model.path = "pocket"
    # Computation dtype of the network; parameters and moments stay float32.
    config.model.dtype = "float32"

    config.rollout = ConfigDict()
    # Groups per iteration (P in the paper): each plays one level.
    config.rollout.num_groups = 16
    # Rollouts per group (N in the paper).
    config.rollout.group_size = 8
    # Replies per episode.
    config.rollout.max_turns = 3
    # Actions run from one reply; the rest is dropped without penalty.
    config.rollout.max_actions_per_turn = 4
    # Actions run in one episode.
    config.rollout.max_actions_per_episode = 10
    # Tokens sampled per reply, the stop token included.
    config.rollout.max_reply_tokens = 32
    config.rollout.temperature = 1.0
    # Truncated sampling. None = off. Training with either needs `algo.importance_cap`.
    config.rollout.top_k = placeholder(int)
    config.rollout.top_p = placeholder(float)
    # Paid once per turn when no listed action is valid or one is unknown.
    config.rollout.format_penalty = -0.1
    # Tokens decoded between two checks whether all rows are done.
    config.rollout.decode_chunk_tokens = 8

    config.algo = ConfigDict()
    # Entry of ADVANTAGES in `ragen_jax/algo/advantages.py`.
    config.algo.advantage = "grpo"
    # The ratio is clipped to [1 - clip_low, 1 + clip_high] (StarPO-S: 0.2/0.28).
    config.algo.clip_low = 0.2
    config.algo.clip_high = 0.28
    # Weight of the entropy bonus (RAGEN: 0.001).
    config.algo.entropy_coeff = 0.001
    # Truncated importance weights: cap on pi_old / pi_sampled. None = off.
    config.algo.importance_cap = placeholder(float)

    config.filter = ConfigDict()
    # Share of the groups kept, those with the largest reward standard deviation
    # (StarPO-S: 0.25); 1.0 keeps all.
    config.filter.keep_fraction = 0.25

    config.optimizer = ConfigDict()
    config.optimizer.learning_rate = 2e-4
    config.optimizer.beta1 = 0.9
    config.optimizer.beta2 = 0.999
    config.optimizer.weight_decay = 0.01
    # Global norm the gradient is clipped to.
    config.optimizer.max_grad_norm = 1.0

    config.learner = ConfigDict()
    # Rows per optimizer step (paper: 32). Fixed: a last, partial minibatch is padded.
    config.learner.minibatch_rows = 32
    # Rows per forward and backward pass. Small is fast on CPUs (cache), large on GPUs.
    config.learner.microbatch_rows = 8
    # Passes over the kept rows per iteration.
    config.learner.epochs = 1
    # Tokens whose logits exist at a time.
    config.learner.logprob_chunk_tokens = 1024

    config.mesh = ConfigDict()
    # Devices per axis; the product is the number of devices used.
    config.mesh.data = 1
    config.mesh.fsdp = 1
    config.mesh.tensor = 1

    config.train = ConfigDict()
    config.train.num_iterations = 40
    # Stop after this many updates in a row that were skipped (non-finite gradient).
    config.train.max_skipped_updates = 5

    config.evaluation = ConfigDict()
    # Iterations between evaluations; also before the first and after the last.
    # None = off.
    config.evaluation.every = 10
    config.evaluation.num_prompts = 256
    config.evaluation.temperature = 0.5
    # Root of the validation levels, a range of its own.
    config.evaluation.seed = 123

    config.checkpoint = ConfigDict()
    # Iterations between checkpoints; the last iteration is always saved.
    config.checkpoint.every = 10
    # Checkpoints kept.
    config.checkpoint.keep = 2

    config.logging = ConfigDict()
    # Iterations between trajectory files and TensorBoard samples. None = off.
    config.logging.trajectories_every = 1
    # Episodes written each time, whole groups first.
    config.logging.trajectories_per_iteration = 8
    # TensorBoard event files.
    config.logging.tensorboard = True

    return config
