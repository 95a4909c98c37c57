"""Every setting, declared once: default, meaning, source, range; no other file has any.

`--help`, the checks before a run and the documentation follow from this list. A task
file (`configs/sokoban.py`) imports `get_config` from here and changes a few lines.
Override any key on the command line: `--config.rollout.num_groups=16`. The names of the
keys are fixed: scripts rely on them. `ragen_jax/registry/settings.py` defines the words
of the list: `count` is a whole number from 1, `none` says what None means, `one_of` and
`entry_of` name the allowed values, `needs` says where a key is read, `is_mutable` that
a resumed run may change it, and `is_data` that another number compiles nothing.
"""

from ml_collections import ConfigDict

from ragen_jax.registry.settings import (
    Settings,
    count,
    number,
    section,
    switch,
    text,
    values,
)


def get_config() -> ConfigDict:
    """The default configuration: StarPO-S with GRPO, sized for the pocket model."""
    return SETTINGS.make_config()


# A table, a key in two or three lines; the formatter would make it six.
# fmt: off
SETTINGS = Settings({
    "seed": number(0,
        "Root of all randomness: the same seed on the same machine gives the same "
        "bits.", least=0, below=2**32),

    "env": section("The environment that is played"),
    "env.name": text("sokoban",
        "Name of an array game in `envs/__init__.py`, or `package.module:Name` of a "
        "class.", needs=("env.mix is None", "env.host is None")),
    "env.kwargs": section(
        "Constructor arguments of the environment (sizes, symbols, observation, ...); "
        "on the command line \"--config.env.kwargs={'num_boxes': 2}\".", is_open=True),
    "env.params": section(
        "Numbers of the environment's `EnvParams` that differ from its defaults.",
        is_open=True),
    "env.mix": values(None,
        "Several array games in one batch: entries (name, groups), whose groups add "
        "up to `rollout.num_groups`, as in \"--config.env.mix=(('sokoban', 16), "
        "('frozen_lake', 16))\". A third item may be {'kwargs': {...}, 'params': "
        "{...}, 'label': name in the metrics}. All share `rollout` and `evaluation`.",
        none="`env.name` alone"),
    "env.host": text(None,
        "Host game in place of `env.name`: an entry of HOST_GAMES in "
        "`ragen_jax/host_games/__init__.py`, or `package.module:Class`, to which "
        "`env.kwargs` go; `agent:package.module:function`.", none="an array game"),

    "host": section(
        "Host games (docs/host_games.md)", needs="env.host is not None"),
    "host.wrappers": values(None,
        "Wrappers around a host game, innermost first: pairs of an entry of WRAPPERS "
        "(`ragen_jax/host_games/wrappers.py`) and its argument, as in \"--config."
        "host.wrappers=(('split', 4), ('budget', 10))\".", none="no wrapper"),
    "host.max_observation_tokens": count(256,
        "Tokens of an observation's text; longer ones are cut in the middle."),
    "host.image_grid": values(None,
        "Rows and columns of tokens of an observation's image, such as (8, 8) for "
        "8 x 8 squares. It needs a model that sees.", none="images are refused"),
    "host.episode_tokens": count(2048,
        "Tokens of an agent's episode: its messages, each once, and replies."),
    "host.context_tokens": count(None,
        "Tokens of one of an agent's dialogues.", none="those of the episode"),
    "host.max_segments": count(4,
        "Dialogues of an agent's episode; a call that extends none begins another."),
    "host.num_widths": count(4,
        "Number of cache lengths to compile, when first needed: powers of two and the "
        "longest possible. A rollout uses the shortest that holds its episodes. 1: the "
        "longest, and prompts are read whole, not 64 tokens at a time."),
    "host.num_workers": count(None,
        "Worker processes that play the games.", is_mutable=True,
        none="one for each processor; 32 for a game that waits, 64 for an agent"),
    "host.start_seconds": number(60.0, "Seconds for a process to start its game.",
        above=0, is_mutable=True),
    "host.step_seconds": number(10.0,
        "Seconds after which a step of a game has failed.", above=0, is_mutable=True),
    "host.max_worker_bytes": count(None,
        "Bytes of memory of a worker process.", none="no limit", is_mutable=True),

    "prompt": section("Wording of the prompts"),
    "prompt.style": text("terse",
        'Wording of the prompts: "full" for real models, "example" with a worked '
        'answer for small ones, "terse" for the pocket model.',
        one_of="ragen_jax.text.prompts:PROMPT_STYLES"),
    "prompt.tokenization": text("symbols",
        'Tokens of a board. "symbols": one per cell, for any board. "rows": one piece '
        "per row, with the tokenizer's ids, for models pre-trained on such text.",
        one_of="ragen_jax.text.token_templates:TOKENIZATIONS"),
    "prompt.observation": text("text",
        'Boards as "text", as a picture ("image"), or "both". Pictures need a model '
        "that sees and a game with a board (docs/visual.md).",
        one_of="ragen_jax.text.pictures:OBSERVATIONS"),
    "prompt.thinking": switch(True, "Whether a reply has a thought before its answer."),
    "prompt.length_hint_words": count(100,
        "Length of a reply, in words, that the full wording asks for.",
        needs="prompt.style != 'terse'"),

    "model": section("The network"),
    "model.path": text("pocket",
        'Weights of the policy: "pocket", "pocket_worlds", "pocket_host" or '
        '"pocket_vision" (built-in), a folder in Hugging Face layout, or a hub id.'),
    "model.dtype": text("float32",
        "Type in which the network computes; parameters and moments stay float32.",
        one_of=("float32", "bfloat16")),
    "model.remat": text(None,
        "Activations of each layer that the learner keeps; it computes the others "
        'again. "layers" takes the least memory.', none="all are kept, the fastest",
        one_of="ragen_jax.models.decoder:REMAT_POLICIES"),
    "model.attention": text("auto",
        "Attention of the learner's passes: \"blocks\" (this library's), \"xla\" or "
        "\"cudnn\" (JAX's). \"auto\": \"cudnn\" on NVIDIA GPUs with bfloat16, else "
        '"blocks".', one_of=("auto", "ragen_jax.models.attention:CAUSAL_ATTENTIONS"),
        is_mutable=True),
    "model.freeze_tower": switch(False,
        "Whether the vision tower of a model that sees stays as it is."),

    "lora": section("Adapters in place of all weights", needs="lora.rank is not None"),
    "lora.rank": count(None,
        "Rank of the adapters that are trained over the frozen policy and a separate "
        "critic, at about ten times the learning rates (RAGEN: 64).",
        none="all weights are trained"),
    "lora.alpha": number(64.0,
        "Scale of the adapters: the product of an adapter's matrices is multiplied by "
        "alpha / rank.", above=0),
    "lora.targets": text("all",
        'Linear layers that get adapters: "all", or names such as "q_proj,v_proj".'),

    "rollout": section("The episodes of an iteration"),
    "rollout.num_groups": count(16,
        "Groups of an iteration (P in the paper); each plays one level."),
    "rollout.group_size": count(8, "Episodes of a group (N in the paper)."),
    "rollout.max_turns": count(3, "Replies of an episode."),
    "rollout.max_actions_per_turn": count(4,
        "Actions run from one reply; the rest is dropped without a penalty."),
    "rollout.max_actions_per_episode": count(10, "Actions run in one episode."),
    "rollout.max_reply_tokens": count(24,
        "Tokens sampled for a reply, the stop token included."),
    "rollout.stop_at_answer": switch(False,
        "Whether a reply ends with its first `</answer>`; real models may write on."),
    "rollout.temperature": number(1.0,
        "Sampling temperature of training rollouts.", above=0, note="sampling",
        is_data=True),
    "rollout.context": text("full",
        'Part of the dialogue that the model sees: "full", "last_k" (the last turns) '
        'or "single_turn" (one message that repeats them). With the last two the rows '
        "of a minibatch are turns, each with the window it was sampled in "
        "(docs/context.md).", one_of="ragen_jax.text.context:CONTEXTS"),
    "rollout.context_turns": count(None,
        'Turns in the window of "last_k" and "single_turn", the turn to be answered '
        "included.", none='with "full"'),
    "rollout.top_k": count(None,
        "Number of most likely tokens to sample from; training with it needs "
        "`loss.importance_cap`.", none="all tokens", is_data=True),
    "rollout.top_p": number(None,
        "Share of the probability to sample from: the fewest tokens that hold it; "
        "training with it needs `loss.importance_cap`.", none="all tokens", above=0,
        below=1, note="all of the probability: None", is_data=True),
    "rollout.format_penalty": number(-0.1,
        "Reward added once per turn without a valid action or with an unknown one.",
        most=0, note="it is added", is_data=True),
    "rollout.decode_chunk_tokens": count(8,
        "Tokens decoded between two checks whether all replies have ended."),
    "rollout.part_rows": count(8,
        "Rows of a rollout that are played together on a single CPU device, as one of "
        "several parts on threads. Few rows are fast while the weights, which every "
        "part reads, are small.", none="all rows", needs="env.host is None",
        is_mutable=True),
    "rollout.decode_attention": text("auto",
        'Attention of replies to the cache: "plain" (XLA), "triton" (kernels for '
        'NVIDIA GPUs that read filled slots only), or "auto": the kernels where they '
        "run.", one_of="ragen_jax.models.kernels.decode:DECODE_ATTENTIONS",
        is_mutable=True),
    "rollout.read_chunk_tokens": count(None,
        "Tokens of a message read in one pass. Fewer take less memory for attention: "
        "rows x heads x tokens x slots.", none="the whole message", is_mutable=True),
    "rollout.compactions": count(None,
        "Times per reply that the unfinished rows move into a batch of half the size, "
        "as soon as they fit: for long replies of very different lengths. Each "
        "compiles the decoding step once more.", none="rows stay where they are"),
    "rollout.max_failed_fraction": number(0.1,
        "Share of a rollout's host games that may fail, not trained on.", least=0,
        below=1, needs="env.host is not None", is_mutable=True),
    "rollout.ahead": number(0,
        "Iterations that rollouts run ahead of the updates. 1: the next rollout is "
        "played during an update, with the parameters before it, which needs "
        "`loss.importance_cap`, and a host game or `rollout.devices` "
        "(docs/devices.md).", one_of=(0, 1)),
    "rollout.devices": count(None,
        "Devices that play rollouts, beside those of `mesh`, which learn; a multiple "
        "of mesh.fsdp x mesh.tensor.", none="the devices that learn play, too",
        needs="rollout.ahead == 1", is_mutable=True),

    "bonus": section(
        "Rewards of a turn for how its reply is written, unseen by filter and success: "
        "weights of BONUSES in `ragen_jax/rollout/bonuses.py`"),
    "bonus.format": number(None,
        "Reward of a reply with its thought and its answer in their tags.",
        none="not paid", never=0, is_data=True),
    "bonus.length": number(None,
        "Reward of a reply of `bonus.min_tokens` to `bonus.max_tokens` tokens, its "
        "stop token included.", none="not paid", never=0, is_data=True),
    "bonus.facts": number(None,
        "Reward of a thought that places all landmarks (player, box, target, goal), "
        'paid by the share placed correctly: "P12" or "the box is in row 2, column 3", '
        "counted from 0.", none="not paid", never=0, is_data=True),
    "bonus.prediction": number(None,
        "The same for the second place stated of each: where it is after the turn.",
        none="not paid", never=0, is_data=True),
    "bonus.custom": text(None,
        "`package.module:Name` of a further bonus, called like BONUSES, paid as it is.",
        none="not paid", entry_of="ragen_jax.rollout.bonuses:CUSTOM_BONUSES"),
    "bonus.min_tokens": count(None,
        "Shortest reply that `bonus.length` pays for.", none="no band", is_data=True),
    "bonus.max_tokens": count(None,
        "Longest reply that `bonus.length` pays for.", none="no band", is_data=True),

    "algo": section("Credit, from rewards to advantages (docs/algorithms.md)"),
    "algo.reward": text(None,
        "`package.module:Name` of a function of a `Trajectory` whose result, Float[B, "
        "K], replaces the reward of each turn in learning.", none="the game's rewards",
        entry_of="ragen_jax.algo.rewards:REWARDS"),
    "algo.advantage": text("grpo",
        "Advantage estimator.", entry_of="ragen_jax.algo.advantages:ADVANTAGES"),
    "algo.gamma": number(1.0,
        "Discount per token, or per turn where the estimator counts turns (RAGEN: 1).",
        least=0, most=1, is_data=True),
    "algo.lam": number(1.0, "Lambda of GAE (RAGEN: 1).", least=0, most=1, is_data=True),
    "algo.high_level_gamma": number(0.95,
        'Discount between turns of "bi_level_gae" (RAGEN: 0.95).', least=0, most=1,
        needs="rollout.max_turns > 1", is_data=True),
    "algo.step_weight": number(1.0,
        'Weight of the step advantage of "gigpo" (its paper: 1).', least=0,
        is_data=True),
    "algo.reward_placement": text("episode",
        'Tokens that rewards are paid at. "episode": all at the last sampled token; '
        '"turn": at the last token of each turn.',
        entry_of="ragen_jax.algo.rewards:REWARD_PLACEMENTS"),
    "algo.normalization": text("identity",
        "Normalisation of episode rewards over the rows of one `algo.grouping`.",
        entry_of="ragen_jax.algo.rewards:NORMALIZATIONS"),
    "algo.grouping": text("state",
        'Rows whose rewards are normalised together: "state" (a group), "batch" or '
        '"environment".', entry_of="ragen_jax.algo.rewards:GROUPINGS",
        needs="algo.normalization != 'identity'"),
    "algo.weigh_groups": switch(False,
        "Multiply a group's advantages by its reward std over the largest."),
    "algo.weigh_lengths": switch(False,
        "Divide the advantages of a row by its length over the mean length."),
    "algo.zero_task": switch(False,
        "Ablation: every advantage is 0, so that only entropy and KL terms are left."),

    "kl": section(
        "KL penalty, which holds the policy near its start",
        needs="kl.placement is not None"),
    "kl.placement": text(None,
        'Place of the KL penalty. "loss": a term of the loss; "reward": taken off the '
        "reward of every token.", none="off, and no reference model is kept (StarPO-S)",
        one_of="ragen_jax.algo.credit:KL_PLACEMENTS"),
    "kl.coeff": number(0.001,
        "Weight of the KL penalty (vanilla StarPO: 0.001), or its first weight where "
        "it adapts.", above=0, note="to switch it off: kl.placement = None",
        is_data=True),
    "kl.estimator": text("k3",
        "Estimator of the KL divergence.",
        entry_of="ragen_jax.algo.losses:KL_ESTIMATORS"),
    "kl.target": number(None,
        "KL per token near which the weight of the penalty adapts to stay (veRL: 0.1).",
        none="the weight is fixed", above=0, is_data=True),
    "kl.horizon": number(10_000,
        "Episodes over which an adaptive weight of the KL penalty changes.", above=0,
        below=2**31, needs="kl.target is not None", is_data=True),

    "filter": section("Selection of groups (`ragen_jax/algo/filters.py`)"),
    "filter.score": text("reward_std",
        "Score of a group, from its raw rewards (never from normalised ones).",
        entry_of="ragen_jax.algo.filters:SCORES"),
    "filter.rule": text("top_fraction",
        "Rule that selects groups by their scores. Its options must be set, those of "
        "other rules None.", entry_of="ragen_jax.algo.filters:FILTERS"),
    "filter.keep_fraction": number(0.25,
        'Rule "top_fraction": share of the groups kept (StarPO-S: 0.25); 1.0 keeps '
        "all.", none="for other rules", above=0, most=1, note="all groups",
        is_data=True),
    "filter.top_k": count(None,
        'Rule "top_k": number of groups kept.', none="for other rules", is_data=True),
    "filter.top_p": number(None,
        "Rules \"top_p\" and \"top_p_softmax\": share of the score's mass kept "
        "(RAGEN-2: 0.9).", none="for other rules", above=0, most=1,
        note="all of the score's mass", is_data=True),
    "filter.min_p": number(None,
        'Rule "min_p": groups are kept that score at least this share of the best.',
        none="for other rules", above=0, most=1, note="as good as the best",
        is_data=True),
    "filter.quantile_low": number(None,
        'Rule "quantile_band": lowest quantile of the scores that is kept.',
        none="for other rules", least=0, most=1, is_data=True),
    "filter.quantile_high": number(None,
        'Rule "quantile_band": highest quantile of the scores that is kept.',
        none="for other rules", least=0, most=1, is_data=True),
    "filter.rows_per_group": count(None,
        'Rule "within_group": rows kept of every group, those with extreme rewards.',
        none="for other rules", is_data=True),
    "filter.top_p_epsilon": number(0.01,
        'Rule "top_p": how far the mass kept may miss its goal (RAGEN: 0.01).',
        least=0, is_data=True),
    "filter.direction": text("largest",
        "End of the scores that the filter keeps.",
        one_of="ragen_jax.algo.filters:DIRECTIONS"),
    "filter.keep_zero": switch(True, "Whether groups whose score is 0 may be kept."),
    "filter.loss_scale": text("none",
        "Factor on the advantages, from the share of groups that the filter kept.",
        entry_of="ragen_jax.algo.credit:FILTER_LOSS_SCALES"),

    "loss": section("Loss of the policy"),
    "loss.policy": text("ppo",
        "Policy loss.", entry_of="ragen_jax.algo.losses:POLICY_LOSSES"),
    "loss.clip_low": number(0.2,
        "The ratio is clipped from below at 1 - clip_low.", above=0, most=1,
        is_data=True),
    "loss.clip_high": number(0.28,
        "The ratio is clipped from above at 1 + clip_high (StarPO-S: 0.28).", above=0,
        is_data=True),
    "loss.dual_clip": number(3.0,
        'Bound on the ratio of tokens with a negative advantage, in "ppo" (RAGEN: 3).',
        none="no bound", above=1, is_data=True),
    "loss.aggregation": text("token_mean",
        "Weights of the tokens of a minibatch in the loss.",
        entry_of="ragen_jax.algo.losses:AGGREGATIONS"),
    "loss.entropy_coeff": number(0.001,
        "Weight of the entropy bonus (RAGEN: 0.001).", least=0, is_data=True),
    "loss.old_log_probs": text("sampler",
        "Source of the ratio's old log-probabilities: the \"sampler\", recorded by the "
        'rollout, or the "learner", by one more forward pass over the kept rows. '
        "`train.max_sampler_difference` bounds their difference.",
        one_of="ragen_jax.learner.loss:OLD_LOG_PROBS"),
    "loss.importance_cap": number(None,
        "Cap on truncated importance weights pi_old / pi_sampled, with old "
        "log-probabilities of the learner.", none="no weights", least=1, is_data=True),

    "critic": section(
        'Values of tokens, where `algo.advantage` reads them ("gae", "bi_level_gae")'),
    "critic.trunk": text("separate",
        'Trunk of the critic: its "separate" network, or one "shared" with the policy.',
        entry_of="ragen_jax.models.critic:TRUNKS"),
    "critic.learning_rate": number(1e-5, "Learning rate of the critic.", above=0,
        is_data=True),
    "critic.clip_value": number(0.5,
        "Bound on the change of a value from its old estimate (RAGEN: 0.5).",
        none="no bound", above=0, is_data=True),
    "critic.loss_coeff": number(1.0,
        "Weight of the critic's loss; with a separate trunk it matters to gradient "
        "clipping only.", above=0, is_data=True),
    "critic.warmup_updates": number(0,
        "Updates at the start in which the critic alone is trained.", least=0,
        below=2**31, is_data=True),

    "optimizer": section("AdamW, of the policy and of the critic"),
    "optimizer.learning_rate": number(2e-4, "Learning rate of the policy.", above=0,
        is_data=True),
    "optimizer.beta1": number(0.9,
        "Decay of AdamW's mean of the gradients.", least=0, below=1, is_data=True),
    "optimizer.beta2": number(0.999,
        "Decay of AdamW's mean of the squared gradients.", least=0, below=1,
        is_data=True),
    "optimizer.weight_decay": number(0.01, "Decoupled weight decay of AdamW.", least=0,
        is_data=True),
    "optimizer.max_grad_norm": number(1.0,
        "Bound on the global norm of the gradient, of each network separately.",
        above=0, is_data=True),

    "schedule": section("Learning-rate schedule, in updates (see `learner`)"),
    "schedule.shape": text("constant",
        "Course of the learning rate.", entry_of="ragen_jax.learner.state:SCHEDULES"),
    "schedule.warmup_updates": number(0,
        "Updates in which the learning rate rises from 0.", least=0, below=2**31,
        is_data=True),
    "schedule.decay_updates": count(None,
        "Update at which the learning rate reaches `schedule.final_fraction`.",
        none='with "constant"', is_data=True),
    "schedule.final_fraction": number(0.0,
        'Share of the learning rate that is left at the end of "linear" and "cosine".',
        least=0, most=1, needs="schedule.shape != 'constant'", is_data=True),

    "learner": section("Passes over the kept rows"),
    "learner.minibatch_rows": count(32,
        "Rows of an optimizer step (paper: 32); a last, partial minibatch is padded."),
    "learner.microbatch_rows": count(8,
        "Rows of a forward and backward pass. Small is fast on CPUs, large on GPUs."),
    "learner.num_widths": count(1,
        "Number of widths to compile for passes. Rows of similar lengths share a pass "
        "at the shortest width that holds them: less padding where lengths differ."),
    "learner.share_prompts": switch(False,
        "Whether a pass reads the first message of a group once for all of its rows, "
        "which then share a minibatch. Pays where that message is longer than what "
        "follows it, and not much shorter than the longest that the game can send, to "
        "which it is padded.", needs="rollout.group_size != 1"),
    "learner.epochs": count(1, "Passes over the kept rows per update."),
    "learner.updates_per_rollout": count(1,
        "Updates of a rollout (the paper's Online-k: k); 1 is on-policy. Each filters, "
        "scores and assigns credit again; metrics are of the last one."),
    "learner.logprob_chunk_tokens": count(1024,
        "Tokens of a pass whose logits exist at a time."),

    "mesh": section(
        "Devices of each axis; their product is the number used (docs/devices.md)",
        is_mutable=True),
    "mesh.data": count(1, "Devices that share the rows."),
    "mesh.fsdp": count(1,
        "Devices that share the rows, and every parameter, gradient and moment."),
    "mesh.tensor": count(1,
        "Devices that share the heads, the inner units and the vocabulary."),

    "train": section(
        "Length of the run, and what stops it early", is_mutable=True),
    "train.num_iterations": count(40,
        "Iterations of the run (rollout, filter, update); raise it to continue a "
        "finished run."),
    "train.max_skipped_updates": count(5,
        "Updates in a row that may be skipped (non-finite gradient) before the run "
        "stops."),
    "train.max_sampler_difference": number(0.1,
        "Largest mean difference between the learner's log-probabilities of the "
        "sampled tokens and the sampler's, before any step; more is an error. About "
        "1e-6 in float32, below 0.02 in bfloat16.", none="no bound", above=0,
        needs=("rollout.ahead == 0", "learner.updates_per_rollout == 1")),
    "train.stall_seconds": number(None,
        "Seconds without a new stage after which a run counts as hung: it says where "
        "each process stands, and ends. A first iteration compiles for minutes.",
        none="it waits", above=0),
    "train.max_empty_iterations": count(5,
        "Iterations in a row in which the filter may keep nothing before the run "
        "stops."),
    "train.min_spread_fraction": number(None,
        "Early stop: the mean reward spread of the groups stayed below this share of "
        "its mean over the first `train.collapse_window` iterations, for as many "
        "iterations in a row (RAGEN: 0.1).", none="off", above=0, most=1),
    "train.collapse_window": count(10,
        "Iterations that `train.min_spread_fraction` looks at.",
        needs="train.min_spread_fraction is not None"),
    "train.min_success": number(None,
        "Early stop: held-out success was below this in `train.failure_window` "
        "evaluations in a row (RAGEN: 0.01).", none="off", above=0, most=1),
    "train.failure_window": count(5,
        "Evaluations that `train.min_success` looks at.",
        needs="train.min_success is not None"),

    "warning": section(
        "Early warnings of collapse (docs/metrics.md). An indicator alarms while its "
        "metric is outside its band; bounds are shares of the metric's mean over the "
        "first iterations. In runs that learn, entropy falls to a third and the reward "
        "spread to two thirds", is_mutable=True),
    "warning.baseline_iterations": count(5,
        "Iterations over which the first mean of every indicator is taken; alarms "
        "begin after them."),
    "warning.persistence": count(3,
        "Measurements in a row outside the band that raise an alarm; 1 for the "
        "gradient norm."),
    "warning.spread_low": number(0.5,
        "Alarm when rollout/in_group_reward_std is below this share of its first mean.",
        none="no bound", above=0, below=1, needs="rollout.group_size > 1"),
    "warning.entropy_low": number(0.2,
        "Alarm (collapse) when actor/entropy is below this share of its first mean.",
        none="no bound", above=0, below=1),
    "warning.entropy_high": number(2.0,
        "Alarm (drift into noise) when actor/entropy is above this multiple of its "
        "first mean.", none="no bound", above=1),
    "warning.grad_norm_high": number(3.0,
        "Alarm when actor/grad_norm is above this multiple of its first mean.",
        none="no bound", above=1),
    "warning.reply_length_low": number(0.5,
        "Alarm when train/<Env>/reply_length, averaged over the games, is below this "
        "share of its first mean.", none="no bound", above=0, below=1),
    "warning.reply_length_high": number(2.0,
        "Alarm when train/<Env>/reply_length, averaged over the games, is above this "
        "multiple of its first mean.", none="no bound", above=1),
    "warning.distinct_low": number(0.5,
        "Alarm when rollout/distinct_3gram is below this share of its first mean.",
        none="no bound", above=0, below=1),
    "warning.top_reply_high": number(5.0,
        "Alarm when rollout/top_reply_share is above this multiple of its first mean.",
        none="no bound", above=1),
    "warning.format_low": number(0.8,
        "Alarm when train/<Env>/format, averaged over the games, or "
        "collapse/valid_thinking_rate is below this share of its first mean.",
        none="no bound", above=0, below=1),
    "warning.information_regime_low": number(0.5,
        "Share of its first measurement below which the information of the thoughts "
        "counts as low. With their entropy it decides `collapse/regime` (0 diverse, 1 "
        "template collapse, 2 compressed, 3 low-entropy collapse).", above=0, below=1,
        needs=("diagnostics.every is not None", "prompt.thinking is True")),
    "warning.entropy_regime_low": number(0.5,
        "Share of its first measurement below which the entropy of the thoughts counts "
        "as low in `collapse/regime`.", above=0, below=1,
        needs=("diagnostics.every is not None", "prompt.thinking is True")),
    "warning.success_window": count(5,
        "Iterations of the success means that the summary at the end of a run "
        "compares."),
    "warning.success_low": number(0.5,
        "The summary reports that success fell when its training mean is below this "
        "share of the highest such mean.", above=0, below=1),
    "warning.action": text(None,
        'Effect of an alarm: "stop" saves and ends the run; "cut_learning_rate" '
        "multiplies the policy's learning rate, once per alarm.", none="no effect",
        one_of="ragen_jax.diagnostics.early_warning:ACTIONS"),
    "warning.act_on": text("all",
        'Indicators whose alarms have that effect (`warning.action`): "all", or names '
        "of INDICATORS in `ragen_jax/diagnostics/early_warning.py`, separated by "
        "commas.", needs="warning.action is not None"),
    "warning.learning_rate_factor": number(0.5,
        "Factor on the learning rate at an alarm.", above=0, below=1,
        needs="warning.action == 'cut_learning_rate'"),
    "warning.cooldown_iterations": count(10,
        "Iterations after a cut of the learning rate in which no other cut follows.",
        needs="warning.action == 'cut_learning_rate'"),

    "evaluation": section(
        "Evaluation on held-out prompts", needs="evaluation.every is not None",
        is_mutable=True),
    "evaluation.every": count(10,
        "Iterations between evaluations; also before the first and after the last.",
        none="no evaluation"),
    "evaluation.num_prompts": count(256, "Validation prompts of each environment."),
    "evaluation.num_samples": count(1, "Episodes of each validation prompt."),
    "evaluation.pass_at": values(None,
        "Values of k for which pass@k is reported (at least one of k samples "
        "succeeds), at most `evaluation.num_samples`, as in "
        '"--config.evaluation.pass_at=(1, 4, 8)".', none="the number of samples"),
    "evaluation.temperature": number(0.5,
        "Sampling temperature on validation prompts; 0 is greedy.", least=0,
        note="0 is greedy", is_data=True),
    "evaluation.seed": number(123,
        "Root seed of the validation levels, separate from `seed`.", least=0,
        below=2**32),

    "diagnostics": section(
        "Diagnostics of the sampling policy (docs/collapse.md)", is_mutable=True),
    "diagnostics.every": count(5,
        "Iterations between diagnostics of the thoughts, the first included (RAGEN: "
        "5).", none="off", needs="prompt.thinking is True"),
    "diagnostics.num_samples": count(64,
        "Thoughts that are scored under each other's prompts (RAGEN: 64), in two "
        "samples: of first turns, and of any turns.",
        needs=("diagnostics.every is not None", "prompt.thinking is True")),
    "diagnostics.chunk_rows": count(64,
        "Pairs of a thought and a prompt scored at a time. Few are fast on CPUs "
        "(cache), many on GPUs.",
        needs=("diagnostics.every is not None", "prompt.thinking is True")),
    "diagnostics.gradient_every": count(None,
        "Iterations between measurements of the gradient by reward spread: of every "
        "part of the loss, over all groups, at the cost of several updates (RAGEN: "
        "50).", none="off", needs="rollout.group_size > 1"),
    "diagnostics.gradient_buckets": count(6,
        "Buckets that groups are sorted into by the standard deviation of their "
        "rewards.",
        needs=("diagnostics.gradient_every is not None", "rollout.group_size > 1")),
    "diagnostics.gradient_bucket_mode": text("quantile",
        'Borders of the buckets of groups: "quantile" (equal numbers of groups) or '
        '"fixed" (0 to 1, 1 to 2, ...; the last takes the rest).',
        entry_of="ragen_jax.diagnostics.gradient_buckets:BUCKET_MODES",
        needs=("diagnostics.gradient_every is not None", "rollout.group_size > 1")),

    "checkpoint": section("Checkpoints", is_mutable=True),
    "checkpoint.every": count(10,
        "Iterations between checkpoints; the last iteration is always saved."),
    "checkpoint.keep": count(2, "Number of checkpoints kept, the newest ones."),
    "checkpoint.keep_best": text(None,
        "Metric of evaluations whose highest value marks the best checkpoint, which is "
        "saved at once, kept beside the newest ones, and opened with "
        "`--checkpoint=best`: \"success\", the mean over the environments, or a full "
        "name, such as \"val-env/Sokoban/success\".",
        none="no best one is kept"),

    "logging": section("Records of the run", is_mutable=True),
    "logging.trajectories_every": count(1,
        "Iterations between trajectory files and TensorBoard samples.", none="off"),
    "logging.trajectories_per_iteration": count(8,
        "Episodes written each time (of each environment), whole groups first.",
        needs="logging.trajectories_every is not None"),
    "logging.metrics": text(None,
        "`package.module:Name` of a function of a `Trajectory` that returns further "
        "metrics, {name: number}, recorded as train/<Env>/<name> and "
        "val-env/<Env>/<name>.", none="no further metrics",
        entry_of="ragen_jax.rollout.metrics:METRIC_FUNCTIONS"),
    "logging.sinks": values(("tensorboard",),
        "Where metrics go besides metrics.jsonl: \"tensorboard\" (event files in the "
        "run folder), \"wandb\", \"mlflow\", or `package.module:Name` of a class "
        "(docs/library.md), as in \"--config.logging.sinks=('tensorboard', "
        "'wandb')\".", none="nowhere", one_of="ragen_jax.runs.sinks:SINKS"),
})
# fmt: on
