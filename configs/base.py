"""Defaults of every key; no other file has any.

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
    # Name in the table of `envs/__init__.py`, or "package.module:Name" of a class.
    config.env.name = "sokoban"
    # Constructor arguments of that environment (sizes, symbols, observation, ...);
    # on the command line "--config.env.kwargs={'num_boxes': 2}".
    config.env.kwargs = ConfigDict()
    # Values of its `EnvParams` that differ from the environment's defaults: numbers.
    config.env.params = ConfigDict()
    # Several environments in one batch, in place of the three keys above: entries
    # (name, groups), in the order of the rows; the groups add up to
    # `rollout.num_groups`. On the command line
    # "--config.env.mix=(('sokoban', 16), ('frozen_lake', 16))". The third item of an
    # entry may be {'kwargs': {...}, 'params': {...}, 'label': name in the metrics}.
    # All share `rollout` and `evaluation`. None: only `env.name`.
    config.env.mix = placeholder(tuple)

    # A game in Python in place of `env.name`: an entry of HOST_GAMES in
    # `ragen_jax/host_games/__init__.py`, or "package.module:Class"; `env.kwargs` are
    # its constructor's. None: a game of arrays.
    config.env.host = placeholder(str)

    config.host = ConfigDict()
    # Wrappers around that game, from the inside out: pairs of an entry of WRAPPERS in
    # `ragen_jax/host_games/wrappers.py` and its argument. On the command line
    # "--config.host.wrappers=(('split', 4), ('budget', 10))". None: none.
    config.host.wrappers = placeholder(tuple)
    # Tokens of an observation of a game in Python; longer ones are cut in the middle.
    config.host.max_observation_tokens = 256
    # The key-value cache is as long as the shortest of so many lengths that holds the
    # episodes: powers of two and the longest possible, each compiled when it is first
    # needed. Prompts are read 64 tokens at a time. 1: the longest, and whole prompts.
    config.host.num_widths = 4
    # Worker processes that play it. None: one for each processor.
    config.host.num_workers = placeholder(int)
    # Seconds after which a step has failed, and its process is killed.
    config.host.step_seconds = 10.0
    # Bytes of memory that a worker may take. None: no limit.
    config.host.max_worker_bytes = placeholder(int)

    config.prompt = ConfigDict()
    # Wording: "full" for real models, "terse" for the pocket model.
    config.prompt.style = "terse"
    # "symbols": one token per cell, any board. "rows": one piece per board row, ids
    # equal to the tokenizer's own; for checkpoints pre-trained on such text.
    config.prompt.tokenization = "symbols"
    # A reply is a thought and an answer. False: an answer alone, without a thought.
    config.prompt.thinking = True
    # Length hint shown to the model in the full wording (words).
    config.prompt.length_hint_words = 100

    config.model = ConfigDict()
    # "pocket", "pocket_worlds" or "pocket_host" (the built-in models), a folder in
    # Hugging Face layout, or a hub id.
    config.model.path = "pocket"
    # Computation dtype of the network; parameters and moments stay float32.
    config.model.dtype = "float32"
    # Activations of each layer that the learner keeps, an entry of REMAT_POLICIES
    # in `ragen_jax/models/decoder.py`: "layers" (least memory), "attention" or
    # "projections"; the rest is computed again. None: all are kept, which is fastest.
    config.model.remat = placeholder(str)
    # How tokens attend in those passes, an entry of CAUSAL_ATTENTIONS in
    # `ragen_jax/models/attention.py`: "blocks" (ours), "xla" or "cudnn" (JAX's own).
    # "auto": "cudnn" on NVIDIA GPUs with dtype "bfloat16", elsewhere "blocks".
    config.model.attention = "auto"

    config.lora = ConfigDict()
    # Train adapters of this rank (RAGEN: 64) over the frozen model, in the policy and
    # in a separate critic, at about ten times the learning rates. None: train all.
    config.lora.rank = placeholder(int)
    # The product of an adapter's matrices is multiplied by alpha / rank.
    config.lora.alpha = 64.0
    # "all", or names of linear layers separated by commas: "q_proj,v_proj".
    config.lora.targets = "all"

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
    config.rollout.max_reply_tokens = 24
    # Temperature of sampling in training.
    config.rollout.temperature = 1.0
    # How much of the dialogue the model sees, an entry of CONTEXTS in
    # `ragen_jax/text/context.py`: "full", "last_k" (the last turns) or "single_turn"
    # (one message that repeats them). With the last two the rows of a minibatch are
    # turns, each with the window it was sampled in. See `docs/context.md`.
    config.rollout.context = "full"
    # Turns in the window, the turn to be answered included. None with "full".
    config.rollout.context_turns = placeholder(int)
    # Sample from the k most likely tokens only; training with it needs
    # `loss.importance_cap`. None: off.
    config.rollout.top_k = placeholder(int)
    # Sample from the fewest tokens that hold this share of the probability; training
    # with it needs `loss.importance_cap`. None: off.
    config.rollout.top_p = placeholder(float)
    # Added once per turn when no listed action is valid or one is unknown.
    config.rollout.format_penalty = -0.1
    # Tokens decoded between two checks whether all rows are done.
    config.rollout.decode_chunk_tokens = 8
    # On a single CPU device: rows that are played together, several such parts at once
    # on threads of their own (compiled games only). Few rows are fast while the weights
    # are small, which every part reads. None: all rows.
    config.rollout.part_rows = 8
    # How tokens of messages and replies attend to the cache: "plain" (XLA's programs),
    # "triton" (kernels of ours for NVIDIA GPUs, over filled slots only) or "auto", the
    # kernels where they can run.
    config.rollout.decode_attention = "auto"
    # Tokens of a message read in one pass. Fewer take less memory for the scores of
    # attention: rows x heads x these tokens x slots. None: the whole message.
    config.rollout.read_chunk_tokens = placeholder(int)
    # Times per reply that the unfinished rows are moved into a batch of half the size,
    # as soon as they fit: for long replies of very different lengths. Each compiles the
    # decoding step once more. None: rows stay where they are.
    config.rollout.compactions = placeholder(int)
    # Share of the games in Python of a rollout that may fail (raise, hang, die); their
    # episodes are not trained on. More of them stop the run.
    config.rollout.max_failed_fraction = 0.1

    # Iterations that rollouts are ahead of the updates. 1: the next rollout is played
    # while an update runs, with the parameters before it, which needs
    # `loss.importance_cap`; with a game in Python, or with `devices`. 0: one after the
    # other (`docs/devices.md`).
    config.rollout.ahead = 0
    # With `ahead`: devices that play, beside those of `mesh.*`, which learn; a multiple
    # of mesh.fsdp x mesh.tensor. None: the device that learns plays, too.
    config.rollout.devices = placeholder(int)

    config.bonus = _bonus()
    config.algo = _credit()
    config.kl = _kl()
    config.filter = _filter()
    config.loss = _loss()
    config.critic = _critic()
    config.optimizer = _optimizer()
    config.schedule = _schedule()

    config.learner = ConfigDict()
    # Rows per optimizer step (paper: 32). Fixed: a last, partial minibatch is padded.
    config.learner.minibatch_rows = 32
    # Rows per forward and backward pass. Small is fast on CPUs (cache), large on GPUs.
    config.learner.microbatch_rows = 8
    # Rows of similar lengths share a pass, which runs at the shortest of so many widths
    # that holds them; each is compiled. Above 1 it saves padding where lengths differ.
    config.learner.num_widths = 1
    # Passes over the kept rows per update.
    config.learner.epochs = 1
    # Updates per rollout batch (the paper's Online-k: k). Each filters the batch,
    # computes log-probabilities and assigns credit again; metrics are of the last one.
    # 1 is on-policy.
    config.learner.updates_per_rollout = 1
    # Tokens whose logits exist at a time.
    config.learner.logprob_chunk_tokens = 1024

    config.mesh = ConfigDict()
    # Devices that share the rows; the product of the three axes is the number of
    # devices used (`docs/devices.md`).
    config.mesh.data = 1
    # Devices that share the rows, and every parameter, gradient and moment.
    config.mesh.fsdp = 1
    # Devices that share heads, inner units and the vocabulary.
    config.mesh.tensor = 1

    config.train = ConfigDict()
    # Iterations of the run: rollout, filter, update. A finished run goes on when this
    # is raised.
    config.train.num_iterations = 40
    # Stop after this many updates in a row that were skipped (non-finite gradient).
    config.train.max_skipped_updates = 5
    # An error when the learner's log-probabilities of the sampled tokens differ from
    # the sampler's by more than this in the mean, before any step: about 1e-6 in
    # float32, below 0.02 in bfloat16. None: no bound.
    config.train.max_sampler_difference = 0.1
    # A run whose stage has not changed for so many seconds has hung: it says where each
    # process stands, and ends. A first iteration compiles for minutes. None: it waits.
    config.train.stall_seconds = placeholder(float)
    # Stop after this many iterations in a row in which the filter kept nothing.
    config.train.max_empty_iterations = 5
    # Early stop: the mean reward spread of the groups stayed below this share of its
    # mean over the first `collapse_window` iterations, for as many iterations in a row
    # (RAGEN: 0.1). None: off.
    config.train.min_spread_fraction = placeholder(float)
    # Iterations of `min_spread_fraction`.
    config.train.collapse_window = 10
    # Early stop: held-out success was below this in `failure_window` evaluations in a
    # row (RAGEN: 0.01). None: off.
    config.train.min_success = placeholder(float)
    # Evaluations of `min_success`.
    config.train.failure_window = 5

    config.warning = _warning()

    config.evaluation = ConfigDict()
    # Iterations between evaluations; also before the first and after the last.
    # None = off.
    config.evaluation.every = 10
    # Prompts, of each environment.
    config.evaluation.num_prompts = 256
    # Episodes of each prompt.
    config.evaluation.num_samples = 1
    # Report pass@k (at least one of k samples succeeds) for these k, at most
    # `num_samples`: "--config.evaluation.pass_at=(1, 4, 8)". None: for all samples.
    config.evaluation.pass_at = placeholder(tuple)
    # Temperature of sampling on validation prompts; 0 is greedy.
    config.evaluation.temperature = 0.5
    # Root seed of the validation levels, separate from `seed`.
    config.evaluation.seed = 123

    config.diagnostics = ConfigDict()
    # Iterations between diagnostics of the sampling policy, the first included
    # (RAGEN: 5). None: off.
    config.diagnostics.every = 5
    # Thoughts that are scored under each other's prompts (RAGEN: 64), in two samples:
    # of first turns, and of any turns.
    config.diagnostics.num_samples = 64
    # Pairs of thought and prompt scored at a time. Few are fast on CPUs (cache), many
    # on GPUs.
    config.diagnostics.chunk_rows = 64
    # Iterations between measurements of the gradient by reward spread: of every part
    # of the loss, over all groups, which costs as many passes as several updates
    # (RAGEN: 50). None: off.
    config.diagnostics.gradient_every = placeholder(int)
    # Buckets of groups, by the standard deviation of their rewards.
    config.diagnostics.gradient_buckets = 6
    # Borders of the buckets: "quantile" (equal numbers of groups) or "fixed" (0 to 1,
    # 1 to 2, ...; the last takes the rest).
    config.diagnostics.gradient_bucket_mode = "quantile"

    config.checkpoint = ConfigDict()
    # Iterations between checkpoints; the last iteration is always saved.
    config.checkpoint.every = 10
    # Checkpoints kept.
    config.checkpoint.keep = 2

    config.logging = ConfigDict()
    # Iterations between trajectory files and TensorBoard samples. None = off.
    config.logging.trajectories_every = 1
    # Episodes written each time (of each environment), whole groups first.
    config.logging.trajectories_per_iteration = 8
    # "package.module:Name" of a function of a `Trajectory` that returns further
    # metrics, {name: number}, recorded as train/<Env>/<name> and val-env/<Env>/<name>.
    # None: none.
    config.logging.metrics = placeholder(str)
    # TensorBoard event files.
    config.logging.tensorboard = True

    return config


def _bonus() -> ConfigDict:
    """Bonuses per turn for how its reply is written.

    The first keys are weights of BONUSES in `ragen_jax/rollout/bonuses.py`; None: not
    paid. The learner sees them like format penalties; the filter and success do not.
    """
    bonus = ConfigDict()
    # Weight of the bonus for a reply with thought and answer in their tags.
    bonus.format = placeholder(float)
    # Weight of the bonus for a reply of `min_tokens` to `max_tokens` tokens, its stop
    # token included.
    bonus.length = placeholder(float)
    # Weight of the share of the landmarks (player, box, target, goal) that the thought
    # places correctly: "P12" or "the box is in row 2, column 3", counted from 0.
    bonus.facts = placeholder(float)
    # "package.module:Name" of a further bonus, called like the entries of BONUSES in
    # `ragen_jax/rollout/bonuses.py`; its result is paid as it is. None: none.
    bonus.custom = placeholder(str)
    # Shortest reply that `bonus.length` pays for.
    bonus.min_tokens = placeholder(int)
    # Longest reply that `bonus.length` pays for.
    bonus.max_tokens = placeholder(int)
    return bonus


def _credit() -> ConfigDict:
    """Credit assignment, from rewards to advantages; see `docs/algorithms.md`."""
    algo = ConfigDict()
    # "package.module:Name" of a function of a `Trajectory` whose result, Float[B, K],
    # is learned from in place of what the game pays for each turn. None: the game's.
    algo.reward = placeholder(str)
    # Entry of ADVANTAGES in `ragen_jax/algo/advantages.py`, or "package.module:Name".
    algo.advantage = "grpo"
    # Discount per token, or per turn where the estimator counts turns (RAGEN: 1).
    algo.gamma = 1.0
    # Lambda of GAE (RAGEN: 1).
    algo.lam = 1.0
    # Discount between turns of "bi_level_gae" (RAGEN: 0.95).
    algo.high_level_gamma = 0.95
    # Weight of the step advantage of "gigpo" (its paper: 1).
    algo.step_weight = 1.0
    # "episode": all reward at the last sampled token. "turn": at each turn's last.
    algo.reward_placement = "episode"
    # With `reward_placement` "episode": entry of NORMALIZATIONS in
    # `ragen_jax/algo/rewards.py`, over the rows of one `grouping`.
    algo.normalization = "identity"
    # Rows normalised together: "state" (the group), "batch" or "environment".
    algo.grouping = "state"
    # Multiply a group's advantages by its reward std over the largest (soft filter).
    algo.weigh_groups = False
    # Divide a row's advantages by its length over the mean length.
    algo.weigh_lengths = False
    # Ablation: no task advantage, only entropy and KL terms are left.
    algo.zero_task = False
    return algo


def _kl() -> ConfigDict:
    """KL penalty, which holds the policy near its starting point."""
    kl = ConfigDict()
    # "loss": a term of the loss. "reward": taken off every token's reward. None: off,
    # and no reference model is kept (StarPO-S).
    kl.placement = placeholder(str)
    # Weight of the KL penalty (vanilla StarPO: 0.001); where it adapts, the weight at
    # the start.
    kl.coeff = 0.001
    # Entry of KL_ESTIMATORS in `ragen_jax/algo/losses.py`.
    kl.estimator = "k3"
    # Adapt the weight so that the KL per token stays near this (veRL: 0.1). None: it
    # is fixed.
    kl.target = placeholder(float)
    # Episodes over which an adaptive weight changes.
    kl.horizon = 10_000
    return kl


def _filter() -> ConfigDict:
    """The rollout filter, which selects groups (`ragen_jax/algo/filters.py`)."""
    keep = ConfigDict()
    # Entry of SCORES, of a group's raw rewards (never of normalised ones).
    keep.score = "reward_std"
    # Entry of FILTERS, or "package.module:Name". Options of the rule must be set, those
    # of other rules None.
    keep.rule = "top_fraction"
    # "top_fraction": share of the groups kept (StarPO-S: 0.25); 1.0 keeps all.
    keep.keep_fraction = 0.25
    # "top_k": number of groups kept.
    keep.top_k = placeholder(int)
    # "top_p", "top_p_softmax": share of the score's mass kept (RAGEN-2: 0.9).
    keep.top_p = placeholder(float)
    # "min_p": groups that score at least this share of the best are kept.
    keep.min_p = placeholder(float)
    # "quantile_band": lowest quantile of the scores that is kept.
    keep.quantile_low = placeholder(float)
    # "quantile_band": highest quantile of the scores that is kept.
    keep.quantile_high = placeholder(float)
    # "within_group": rows kept of every group, those with extreme rewards.
    keep.rows_per_group = placeholder(int)
    # "top_p": the mass kept may miss its goal by this much (RAGEN: 0.01).
    keep.top_p_epsilon = 0.01
    # Keep the groups with the "largest" or the "smallest" scores.
    keep.direction = "largest"
    # Groups whose score is 0 may be kept.
    keep.keep_zero = True
    # Factor on the advantages: entry of FILTER_LOSS_SCALES in
    # `ragen_jax/algo/credit.py`, of the share of groups kept.
    keep.loss_scale = "none"
    return keep


def _loss() -> ConfigDict:
    """The policy's loss."""
    loss = ConfigDict()
    # Entry of POLICY_LOSSES in `ragen_jax/algo/losses.py`.
    loss.policy = "ppo"
    # The ratio is clipped from below at 1 - clip_low.
    loss.clip_low = 0.2
    # The ratio is clipped from above at 1 + clip_high (StarPO-S: 0.28).
    loss.clip_high = 0.28
    # "ppo": bound on the ratio of tokens with a negative advantage (RAGEN: 3). None:
    # off.
    loss.dual_clip = 3.0
    # Entry of AGGREGATIONS: the weights of a minibatch's tokens.
    loss.aggregation = "token_mean"
    # Weight of the entropy bonus (RAGEN: 0.001).
    loss.entropy_coeff = 0.001
    # Source of the ratio's old log-probabilities: the "sampler", recorded by the
    # rollout, or the "learner", by one more forward pass over the kept rows.
    # `train.max_sampler_difference` bounds their difference.
    loss.old_log_probs = "sampler"
    # Truncated importance weights: cap on pi_old / pi_sampled, with the learner's old
    # log-probabilities. None = off.
    loss.importance_cap = placeholder(float)
    return loss


def _critic() -> ConfigDict:
    """The critic; only where `algo.advantage` reads values ("gae", "bi_level_gae")."""
    critic = ConfigDict()
    # Entry of TRUNKS in `ragen_jax/models/critic.py`: "separate" or "shared".
    critic.trunk = "separate"
    # Learning rate of the critic.
    critic.learning_rate = 1e-5
    # Bound on a value's change from its old estimate (RAGEN: 0.5). None: no bound.
    critic.clip_value = 0.5
    # Weight of the critic's loss; with a separate trunk it matters to gradient clipping
    # only.
    critic.loss_coeff = 1.0
    # Updates at the start in which only the critic is trained.
    critic.warmup_updates = 0
    return critic


def _optimizer() -> ConfigDict:
    """AdamW, of the policy and of the critic."""
    optimizer = ConfigDict()
    # Learning rate of the policy.
    optimizer.learning_rate = 2e-4
    # Decay of AdamW's mean of the gradients.
    optimizer.beta1 = 0.9
    # Decay of AdamW's mean of their squares.
    optimizer.beta2 = 0.999
    # Decoupled weight decay of AdamW.
    optimizer.weight_decay = 0.01
    # Bound on the global norm of the gradient, of each network separately.
    optimizer.max_grad_norm = 1.0
    return optimizer


def _schedule() -> ConfigDict:
    """Learning-rate schedule, by updates (one per iteration, see `learner`)."""
    schedule = ConfigDict()
    # Course of the learning rate, an entry of SCHEDULES in
    # `ragen_jax/learner/state.py`: "constant", "linear" or "cosine".
    schedule.shape = "constant"
    # Updates in which the learning rate rises from 0.
    schedule.warmup_updates = 0
    # Update at which `final_fraction` is reached; None where the rate is constant.
    schedule.decay_updates = placeholder(int)
    # Share of the learning rate at the end of "linear" and "cosine".
    schedule.final_fraction = 0.0
    return schedule


def _warning() -> ConfigDict:
    """Early warnings of collapse (`ragen_jax/diagnostics/early_warning.py`).

    An indicator alarms while its metric is outside its band for some measurements in a
    row. Bounds are shares of the metric's mean over the first iterations; None: open.
    In runs that learn, entropy falls to a third and the reward spread to two thirds.
    """
    warning = ConfigDict()
    # Iterations of that mean; alarms begin after them.
    warning.baseline_iterations = 5
    # Measurements in a row outside the band; 1 for the gradient norm.
    warning.persistence = 3
    # Alarm below this share of the first rollout/in_group_reward_std.
    warning.spread_low = 0.5
    # Alarm below this share of the first actor/entropy: collapse.
    warning.entropy_low = 0.2
    # Alarm above this multiple of the first actor/entropy: drift into noise.
    warning.entropy_high = 2.0
    # Alarm above this multiple of the first actor/grad_norm.
    warning.grad_norm_high = 3.0
    # Alarm below this share of the first train/<Env>/reply_length, mean of the games.
    warning.reply_length_low = 0.5
    # Alarm above this multiple of it.
    warning.reply_length_high = 2.0
    # Alarm below this share of the first rollout/distinct_3gram.
    warning.distinct_low = 0.5
    # Alarm above this multiple of the first rollout/top_reply_share.
    warning.top_reply_high = 5.0
    # Alarm below this share of the first train/<Env>/format, mean of the games, and
    # of collapse/valid_thinking_rate.
    warning.format_low = 0.8
    # The information of the thoughts is low below this share of its first measurement.
    # With their entropy it decides `collapse/regime` (0 diverse, 1 template collapse, 2
    # compressed, 3 low-entropy collapse).
    warning.information_regime_low = 0.5
    # The entropy of the thoughts is low below this share of its first measurement.
    warning.entropy_regime_low = 0.5
    # Iterations of the means that the summary at the end of a run compares.
    warning.success_window = 5
    # The summary reports that success fell when its training mean is below this share
    # of the highest such mean.
    warning.success_low = 0.5
    # Effect of an alarm: "stop" saves and ends the run; "cut_learning_rate" multiplies
    # the policy's learning rate, once per alarm. None: no effect.
    warning.action = placeholder(str)
    # Indicators with that effect: "all", or names of `INDICATORS`, with commas.
    warning.act_on = "all"
    # Factor on the learning rate, for "cut_learning_rate".
    warning.learning_rate_factor = 0.5
    # Iterations after a cut in which no other follows.
    warning.cooldown_iterations = 10
    return warning
