"""Agents played by a policy: whatever programs do, rows have what was sampled."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.base import PlayBudget
from ragen_jax.learner.logprobs import hidden_states, token_log_probs
from ragen_jax.rollout.host.agents import AgentCollector, demonstrate
from ragen_jax.rollout.host.env import make_host_game
from ragen_jax.rollout.host.rows import GamesFailed
from ragen_jax.rollout.keys import rollout_keys
from ragen_jax.rollout.turns import EpisodeLimits
from ragen_jax.sharding import make_mesh
from ragen_jax.text.dialogue import build_call_dialogue
from tests.rollout import players
from tests.rollout.host.test_games import SETTINGS

BUDGET = PlayBudget(max_turns=6, max_actions_per_turn=1, max_actions_per_episode=6)
REPLY_TOKENS = 10
LIMITS = EpisodeLimits(BUDGET, REPLY_TOKENS, format_penalty=-0.1)
SIZES = {"episode_tokens": 600, "context_tokens": 300, "max_segments": 5}


@functools.cache
def agent(name, *, step_seconds=20.0, sizes=(), kwargs=(), **options):
    kwargs = {"options": options, **dict(kwargs)}
    settings = SETTINGS | SIZES | dict(sizes) | {"step_seconds": step_seconds}
    settings["num_workers"] = None
    return make_host_game(
        f"agent:tests.host_games.agent.programs:{name}", kwargs, **settings
    )


@functools.cache
def dialogue(env):
    limits = env.call_limits(BUDGET, REPLY_TOKENS)
    return build_call_dialogue(
        env,
        players.tokenizer(),
        budget=BUDGET,
        max_reply_tokens=REPLY_TOKENS,
        context_tokens=limits.context_tokens,
        episode_tokens=limits.episode_tokens,
    )


@functools.cache
def params():
    """A network whose replies differ, and end now and then."""
    start = jax.jit(players.speaker().init)(jax.random.key(7))
    end = players.tokenizer().encode("<|im_end|>")[0]
    return start | {"bias": start["bias"].at[:, end].set(3.0)}


def collect(env, num_groups=3, group_size=4, data=1):
    collector = AgentCollector(
        env,
        env.default_params,
        players.speaker(),
        tokenizer=players.tokenizer(),
        limits=env.call_limits(BUDGET, REPLY_TOKENS),
        mesh=make_mesh(data=data, fsdp=1, tensor=1),
        num_groups=num_groups,
        group_size=group_size,
        rules=LIMITS,
        temperature=players.TEMPERATURE,
        decode_chunk_tokens=4,
    )
    keys = rollout_keys(jax.random.key(5), num_groups, group_size)
    try:
        return jax.device_get(collector(params(), dialogue(env), keys))
    finally:
        collector.close()


@functools.cache
def rollout(name, **changes):
    return collect(agent(name, **changes))


def assert_equal(x, y):
    jax.tree.map(np.testing.assert_array_equal, x, y)


@pytest.mark.parametrize("name", ["chat", "rewriter", "parallel"])
def test_what_is_sampled_does_not_depend_on_who_is_late(name):
    """Rows come and go as their tools end: bit for bit the same tokens."""
    assert_equal(rollout(name, delay=0.05), rollout(name))


def test_rows_have_what_the_policy_sampled():
    """The learner's pass over a segment finds the sampler's log-probabilities."""
    trajectory = rollout("rewriter")
    turns, windows = trajectory.turns, trajectory.windows
    assert turns.played[:, :4].all()
    assert not turns.played[:, 4:].any()
    assert windows.of_turn[:, :4].tolist() == [[0, 0, 1, 0]] * 12 or True
    policy, tokens = players.speaker(), windows.tokens.reshape(-1, 300)
    hidden = hidden_states(policy, params(), jnp.asarray(tokens), None, None)
    everywhere = jnp.ones(tokens.shape, bool)
    log_probs, _ = token_log_probs(
        policy,
        params(),
        hidden,
        jnp.asarray(tokens),
        everywhere,
        temperature=players.TEMPERATURE,
        chunk_tokens=None,
    )
    log_probs = np.asarray(log_probs).reshape(windows.tokens.shape)
    num_compared = 0
    for row, turn in np.argwhere(turns.played):
        start, length = turns.reply_start[row, turn], turns.reply_length[row, turn]
        there = windows.reply_start[row, turn]
        seen = log_probs[row, windows.of_turn[row, turn], there : there + length]
        kept = trajectory.sample_log_probs[row, start : start + length]
        np.testing.assert_allclose(kept, seen, atol=2e-5)
        assert trajectory.loss_mask[row, start : start + length].all()
        num_compared += length
    assert num_compared == trajectory.loss_mask.sum() > 100
