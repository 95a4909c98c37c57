"""Every key of the configuration changes something, and the tables here say what.

A key that none of the tables names fails the test. Programs are compared as traced,
without what only metrics need: an update runs only where a key enters as data.
"""

import functools
import pathlib
import re

import jax
import numpy as np
import pytest
from jax.extend import core
from jax.interpreters import partial_eval

from configs import base
from ragen_jax.config import validate
from ragen_jax.registry.settings import flatten
from tests.learner import tiny
from tests.learner.tiny import rule

KEY, EPISODES = jax.random.key(2), tiny.make_episodes()
PPO = {"algo.advantage": "gae", "algo.lam": 0.9}
BI_LEVEL = {"algo.advantage": "bi_level_gae", "algo.reward_placement": "turn"}
REINFORCE = {"algo.advantage": "reinforce", "algo.normalization": "mean"}
KL = {"kl.placement": "loss", "kl.coeff": 0.3}
STEPS = {"learner.minibatch_rows": 4, "learner.microbatch_rows": 4}
TOP_P = rule("top_p", top_p=0.6)
BAND = rule("quantile_band", quantile_low=0.25, quantile_high=0.75)
LINEAR = {"schedule.shape": "linear", "schedule.decay_updates": 4}

# Key -> the setting in which it is effective, and the keys' new values: after an update
# (two, where the schedule is asked about) the networks or the KL weight are others.
CHANGES = {
    "algo.advantage": ({}, "rloo"),
    "algo.gamma": (PPO, 0.9),
    "algo.lam": (PPO, 0.5),
    "algo.high_level_gamma": (BI_LEVEL, 0.5),
    "algo.step_weight": ({"algo.advantage": "gigpo"}, 2.0),
    "algo.reward_placement": (PPO, "turn"),
    "algo.normalization": (REINFORCE, "mean_std"),
    "algo.grouping": (REINFORCE, "batch"),
    "algo.weigh_groups": ({}, True),
    "algo.weigh_lengths": ({}, True),
    "algo.zero_task": ({}, True),
    "kl.placement": (KL, "reward"),
    "kl.coeff": (KL, 0.9),
    "kl.estimator": (KL, "k1"),
    "kl.target": (KL, 0.5),
    "kl.horizon": (KL | {"kl.target": 0.5}, 77),
    "filter.score": ({}, "length"),
    "filter.rule": (TOP_P, "top_p_softmax"),
    "filter.keep_fraction": ({}, 0.25),
    "filter.top_k": (rule("top_k", top_k=2), 1),
    "filter.top_p": (TOP_P, 0.2),
    "filter.min_p": (rule("min_p", min_p=0.99), 0.1),
    "filter.quantile_low": (BAND, 0.5),
    "filter.quantile_high": (BAND, 0.5),
    "filter.rows_per_group": (rule("within_group", rows_per_group=2), 3),
    "filter.top_p_epsilon": (TOP_P, 1.0),
    "filter.direction": ({}, "smallest"),
    "filter.keep_zero": ({"filter.keep_fraction": 1.0}, False),
    "filter.loss_scale": ({}, "linear"),
    "loss.policy": ({}, "cispo"),
    "loss.clip_low": ({}, 0.01),
    "loss.clip_high": ({}, 0.01),
    "loss.dual_clip": ({"loss.dual_clip": 1.01}, None),
    "loss.aggregation": ({}, "seq_mean_token_mean"),
    "loss.entropy_coeff": ({}, 0.5),
    "loss.old_log_probs": ({}, "learner"),
    "loss.importance_cap": ({"loss.old_log_probs": "learner"}, 1.05),
    "critic.trunk": (PPO, "shared"),
    "critic.learning_rate": (PPO, 0.5),
    "critic.clip_value": (PPO | STEPS, 1e-3),
    "critic.loss_coeff": (PPO, 1e-3),
    "critic.warmup_updates": (PPO, 1),
    "optimizer.learning_rate": ({}, 0.5),
    "optimizer.beta1": ({}, 0.5),
    "optimizer.beta2": ({}, 0.5),
    "optimizer.weight_decay": ({}, 0.5),
    "optimizer.max_grad_norm": ({}, 1e-3),
    "schedule.shape": (LINEAR, "cosine"),
    "schedule.warmup_updates": ({}, 2),
    "schedule.decay_updates": (LINEAR, 3),
    "schedule.final_fraction": (LINEAR, 0.5),
    "learner.minibatch_rows": ({"learner.microbatch_rows": 4}, 4),
    "learner.epochs": ({}, 2),
    "rollout.temperature": ({}, 0.9),
    # The rows stay sixteen.
    "rollout.num_groups": ({}, {"rollout.num_groups": 2, "rollout.group_size": 8}),
    "rollout.group_size": ({}, {"rollout.num_groups": 8, "rollout.group_size": 2}),
}
# File with tests of keys that the update does not read, or that change speed alone.
ELSEWHERE = {
    "tests/learner/test_update.py": (
        "learner.microbatch_rows learner.num_widths learner.logprob_chunk_tokens"
    ),
    "tests/learner/test_shared_prompts.py": "learner.share_prompts",
    "tests/launch/test_users_functions.py": "algo.reward bonus.custom logging.metrics",
    "tests/test_resume.py": "seed train.num_iterations checkpoint.every",
    "tests/envs/test_contract.py": "env.name",
    "tests/test_mix.py": "env.mix",
    "tests/rollout/host/test_games.py": (
        "env.host host.max_observation_tokens host.num_widths host.wrappers "
        "host.num_workers rollout.max_failed_fraction"
    ),
    "tests/rollout/host/test_images.py": "host.image_grid",
    "tests/rollout/host/test_calls.py": (
        "host.episode_tokens host.context_tokens host.max_segments"
    ),
    "tests/host_games/workers/test_pool.py": (
        "host.start_seconds host.step_seconds host.max_worker_bytes"
    ),
    "tests/devices/test_heartbeat.py": "train.stall_seconds",
    "tests/text/test_prompts.py": "prompt.style prompt.length_hint_words",
    "tests/text/test_dialogue.py": "prompt.tokenization",
    "tests/text/test_thinking.py": "prompt.thinking",
    "tests/launch/test_train.py": "model.path",
    "tests/models/test_decoder.py": "model.dtype",
    "tests/learner/test_remat.py": "model.remat",
    "tests/models/test_attention.py": "model.attention",
    "tests/rollout/test_pictures.py": "prompt.observation model.freeze_tower",
    "tests/models/test_lora.py": "lora.rank lora.alpha lora.targets",
    "tests/rollout/test_turns.py": "rollout.max_turns rollout.format_penalty",
    "tests/rollout/players.py": (
        "rollout.max_actions_per_turn rollout.max_actions_per_episode"
    ),
    "tests/rollout/test_decode.py": (
        "rollout.max_reply_tokens rollout.compactions rollout.decode_chunk_tokens "
        "rollout.read_chunk_tokens"
    ),
    "tests/rollout/test_collect.py": (
        "rollout.context rollout.context_turns rollout.stop_at_answer"
    ),
    "tests/rollout/test_sampling.py": "rollout.top_k rollout.top_p",
    "tests/rollout/test_bonuses.py": (
        "bonus.format bonus.length bonus.facts bonus.prediction bonus.min_tokens "
        "bonus.max_tokens"
    ),
    "tests/rollout/test_parts.py": "rollout.part_rows",
    "tests/program/test_prefetch.py": "rollout.ahead rollout.devices",
    "tests/models/kernels/test_decode.py": "rollout.decode_attention",
    "tests/test_train.py": (
        "learner.updates_per_rollout train.max_sampler_difference "
        "train.max_skipped_updates logging.trajectories_every "
        "logging.trajectories_per_iteration"
    ),
    "tests/devices/test_sharding.py": "mesh.data mesh.fsdp mesh.tensor",
    "tests/diagnostics/test_early_stopping.py": (
        "train.max_empty_iterations train.min_spread_fraction train.collapse_window "
        "train.min_success train.failure_window"
    ),
    "tests/diagnostics/test_gradient_buckets.py": (
        "diagnostics.gradient_every diagnostics.gradient_buckets "
        "diagnostics.gradient_bucket_mode"
    ),
    "tests/diagnostics/test_early_warning.py": (
        "warning.baseline_iterations warning.persistence warning.spread_low "
        "warning.entropy_low warning.entropy_high warning.grad_norm_high "
        "warning.reply_length_low warning.reply_length_high warning.distinct_low "
        "warning.top_reply_high warning.format_low warning.information_regime_low "
        "warning.entropy_regime_low warning.success_window warning.success_low "
        "warning.action warning.act_on warning.learning_rate_factor "
        "warning.cooldown_iterations"
    ),
    "tests/test_config.py": "evaluation.every evaluation.pass_at checkpoint.keep",
    "tests/evaluation/test_load.py": "evaluation.num_prompts",
    "tests/evaluation/api/test_evaluate.py": "evaluation.num_samples",
    "tests/program/test_build.py": "evaluation.temperature evaluation.seed",
    "tests/diagnostics/test_schedule.py": "diagnostics.every",
    "tests/diagnostics/test_pairs.py": "diagnostics.num_samples",
    "tests/diagnostics/test_scoring.py": "diagnostics.chunk_rows",
    "tests/runs/test_best.py": "checkpoint.keep_best",
    "tests/runs/sinks/test_sinks.py": "logging.sinks",
}


@functools.cache
def build(items):
    settings = {key.replace(".", "__"): value for key, value in items}
    validate(tiny.make_config(**settings))
    return tiny.build(**settings)


def learned(state):
    return state.policy, state.critic, state.kl_coeff


def advance(items, state, num_updates):
    """Networks and KL weight after some updates of the same episodes."""
    _, update = build(items)
    for i in range(num_updates):
        state, *_ = update(state, EPISODES, jax.random.fold_in(KEY, i))
    return learned(state)


@functools.cache
def traced(items, num_updates):
    """The program of the updates, constants included, as text."""
    state, _ = build(items)
    closed = jax.make_jaxpr(lambda state: advance(items, state, num_updates))(state)
    jaxpr, _ = partial_eval.dce_jaxpr(
        closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True
    )
    run = jax.jit(core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, closed.consts)))
    text = run.lower(*jax.tree.leaves(state)).as_text()
    # Names of functions are not part of what they compute.
    return re.sub(r'@("[^"]*"|\w+)', "@", text)


@functools.cache
def executed(items, num_updates):
    # The update takes the state it is given away.
    state = jax.tree.map(lambda x: x.copy(), build(items)[0])
    return jax.device_get(advance(items, state, num_updates))


def differ(before, after):
    if jax.tree.structure(before) != jax.tree.structure(after):
        return True
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return any(not np.array_equal(a, b) for a, b in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("key", CHANGES)
def test_changes_what_is_learned(key):
    setting, change = CHANGES[key]
    change = change if isinstance(change, dict) else {key: change}
    leaves = flatten(tiny.make_config())
    assert any((leaves | setting).get(k) != value for k, value in change.items())
    num_updates = 2 if key.startswith("schedule.") else 1
    before, after = (
        (tuple(sorted(changes.items(), key=str)), num_updates)
        for changes in (setting, setting | change)
    )
    is_other_program = traced(*before) != traced(*after)
    assert is_other_program or differ(executed(*before), executed(*after))


def test_every_key_is_in_one_table():
    elsewhere = " ".join(ELSEWHERE.values()).split()
    assert sorted([*CHANGES, *elsewhere]) == sorted(flatten(base.get_config()))
    assert [file for file in ELSEWHERE if not pathlib.Path(file).is_file()] == []


@pytest.mark.slow
def test_a_key_that_is_not_read_leaves_the_same_program():
    """What differs is a difference of programs, not of how they are printed."""
    before, after = (((("evaluation.seed", seed),), 2) for seed in (0, 1))
    assert traced(*before) == traced(*after)
    assert not differ(executed(*before), executed(*after))
