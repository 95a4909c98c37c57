"""The compiled rollout: equal to the slow loop, row by row its own, compiled once."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import sokoban
from ragen_jax.program.build import POCKET
from ragen_jax.rollout import collect
from ragen_jax.rollout.keys import rollout_keys
from ragen_jax.rollout.records import episodes
from ragen_jax.sharding import make_mesh
from ragen_jax.tasks.build import build_collect, build_task
from ragen_jax.tasks.specs import env_specs
from ragen_jax.text.tokenizer import load_tokenizer
from tests.reference.rollout_loop import RolloutLoop
from tests.rollout import players

# Two of the Bandit's four levels offer the names that the speaker has learned.
SEED = 36


def _keys(seed=SEED, num_groups=4, group_size=2):
    return rollout_keys(jax.random.key(seed), num_groups, group_size)


@functools.cache
def _collected(name):
    _, dialogue = players.game(name)
    return players.collector(name)(players.speaker_params(name), dialogue, _keys())


@pytest.mark.parametrize(
    "name",
    [
        "sokoban",
        *(pytest.param(g, marks=pytest.mark.slow) for g in ("bandit", "frozen_lake")),
    ],
)
def test_equals_the_slow_loop_bit_by_bit(name):
    env, dialogue = players.game(name)
    loop = RolloutLoop(
        env,
        env.default_params,
        players.speaker(),
        dialogue,
        players.tokenizer(),
        budget=players.BUDGET,
        max_reply_tokens=players.REPLY_TOKENS,
        format_penalty=-0.1,
        temperature=players.TEMPERATURE,
    )
    trajectory = _collected(name)
    expected = loop.collect(players.speaker_params(name), _keys())
    flat, _ = jax.tree.flatten_with_path(trajectory)
    for (path, leaf), oracle in zip(flat, jax.tree.leaves(expected), strict=True):
        place = jax.tree_util.keystr(path)
        assert leaf.dtype == oracle.dtype, place
        np.testing.assert_array_equal(leaf, oracle, err_msg=place)
    # The episodes must be worth comparing.
    turns = trajectory.turns
    assert jnp.any(turns.num_executed > 0)
    assert jnp.any(turns.played & (turns.num_valid == 0))
    assert jnp.any(turns.reply_is_cut)
    records = episodes(trajectory, players.tokenizer(), dialogue.prompts, 3)
    assert len(records) == 3
    assert json.loads(json.dumps(records)) == records
    for record in records:
        assert ("legend" in record) == (name != "bandit")
        for turn in record["turns"]:
            assert ("board" in turn) == (name != "bandit")
            assert "\n".join(turn.get("board", [])) in turn["observation"]
            assert "".join(turn["token_texts"]) == turn["reply"]
            assert len(turn["token_texts"]) == len(turn["token_log_probs"])
            assert len(turn["token_texts"]) == turn["reply_tokens"]
            total = pytest.approx(turn["log_prob"], abs=1e-3 * turn["reply_tokens"])
            assert sum(turn["token_log_probs"]) == total


def test_log_probs_are_those_of_the_uncached_network():
    """The cache holds exactly the recorded tokens, and the sampler is honest."""
    trajectory = _collected("sokoban")
    policy, params = players.speaker(), players.speaker_params("sokoban")

    @jax.jit
    def teacher_forced(tokens):
        shape = tokens.shape
        positions = jnp.broadcast_to(jnp.arange(shape[1])[None, :], shape)
        hidden, _ = policy.forward(params, tokens, positions, None)
        scaled = policy.logits(params, hidden[:, :-1]) / players.TEMPERATURE
        log_probs = jax.nn.log_softmax(scaled, axis=-1)
        return jnp.take_along_axis(log_probs, tokens[:, 1:, None], axis=-1)[..., 0]

    is_sampled = np.asarray(trajectory.loss_mask[:, 1:])
    expected = np.asarray(teacher_forced(trajectory.tokens))[is_sampled]
    sampled = np.asarray(trajectory.sample_log_probs[:, 1:])[is_sampled]
    np.testing.assert_allclose(sampled, expected, atol=1e-5)
    assert np.std(expected) > 0.1
    assert not np.any(np.asarray(trajectory.sample_log_probs)[:, 1:][~is_sampled])


@pytest.mark.slow
def test_compiles_once():
    name = "bandit"
    _, dialogue = players.game(name)
    collect, params = players.collector(name), players.speaker_params(name)
    first = collect(params, dialogue, _keys())
    num_traces = len(players.TRACES)
    other = jax.tree.map(lambda x: 0.9 * x, params)
    again = [
        collect(p, dialogue, _keys(seed)) for p in (params, other) for seed in (SEED, 1)
    ]
    assert len(players.TRACES) == num_traces
    np.testing.assert_array_equal(again[0].tokens, first.tokens)
    assert all(jnp.any(t.tokens != first.tokens) for t in again[1:])


@pytest.mark.slow
def test_a_row_is_the_same_in_other_company():
    """Half the batch, each row on a device of its own: the same tokens."""
    name = "bandit"
    _, dialogue = players.game(name)
    collect = players.collector(name, num_groups=2, data=2, fsdp=2)
    trajectory = collect(players.speaker_params(name), dialogue, _keys(num_groups=2))
    count = len(trajectory.lengths)
    expected = jax.tree.map(lambda x: x[:count], _collected(name))
    np.testing.assert_allclose(
        trajectory.sample_log_probs, expected.sample_log_probs, atol=1e-5
    )
    zeros = jnp.zeros_like(expected.sample_log_probs)
    trajectory = jax.device_get(trajectory.replace(sample_log_probs=zeros))
    expected = jax.device_get(expected.replace(sample_log_probs=zeros))
    jax.tree.map(np.testing.assert_array_equal, trajectory, expected)


def test_a_group_shares_its_level_and_nothing_else():
    trajectory = _collected("sokoban")
    boards = np.asarray(trajectory.tokens[:, :40]).reshape(4, 2, -1)
    for leaf in jax.tree.leaves(trajectory.initial_state):
        pairs = np.asarray(leaf).reshape(4, 2, -1)
        np.testing.assert_array_equal(pairs[:, 0], pairs[:, 1])
    assert np.any(boards[0] != boards[1])
    replies = np.where(trajectory.loss_mask, trajectory.tokens, -1)
    assert np.all(np.any(replies[0::2] != replies[1::2], axis=1))


def test_rows_that_cannot_be_split_are_refused():
    with pytest.raises(ValueError, match=r"6 rows cannot be split over .* = 4 dev"):
        players.collector("bandit", num_groups=3, data=4)


def test_a_dialogue_of_another_size_is_refused():
    _, dialogue = players.game("bandit")
    collect = players.collector(
        "bandit", rules=dataclasses.replace(players.LIMITS, max_reply_tokens=9)
    )
    with pytest.raises(ValueError, match="up to 9 reply tokens need"):
        collect(players.speaker_params("bandit"), dialogue, _keys())


def test_a_configuration_s_way_to_decode_reaches_the_responder(monkeypatch):
    config = sokoban.get_config()
    told = {
        "temperature": 0.7,
        "top_k": 5,
        "top_p": 0.5,
        "compactions": 1,
        "decode_chunk_tokens": 3,
        "read_chunk_tokens": 7,
        "decode_attention": "plain",
    }
    config.rollout.update(told)
    asked = []
    monkeypatch.setattr(
        collect, "make_responder", lambda *_, **decoding: asked.append(decoding)
    )
    tokenizer = load_tokenizer(POCKET)
    task = build_task(config, env_specs(config)[0], tokenizer)
    mesh = make_mesh(data=1, fsdp=1, tensor=1)
    build_collect(config, task, None, mesh, num_groups=2, group_size=2)
    build_collect(config, task, None, mesh, num_groups=2, group_size=2, top_k=None)
    assert asked == [told, told | {"top_k": None}]
