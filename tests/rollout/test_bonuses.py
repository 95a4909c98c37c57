"""Bonuses for how replies are written: the slow loop's, and the learner's alone."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from ragen_jax.devices.sharding import make_mesh
from ragen_jax.models.hf.weights import load_checkpoint
from ragen_jax.models.policy import build_policy
from ragen_jax.program.build import POCKET
from ragen_jax.rollout.bonuses import BONUSES, Written, build_bonus
from ragen_jax.rollout.collect import make_collect
from ragen_jax.rollout.keys import rollout_keys
from ragen_jax.rollout.metrics import rollout_metrics
from ragen_jax.text.statements import Statements, build_facts, is_there
from ragen_jax.types import ParsedAnswer, Reply
from tests.reference.facts_oracle import read_facts
from tests.reference.rollout_loop import RolloutLoop
from tests.rollout import players

OFF = dict.fromkeys((*BONUSES, "min_tokens", "max_tokens"))
ALL = {
    "format": 0.5,
    "length": -0.25,
    "facts": 1.0,
    "prediction": 0.3,
    "min_tokens": 6,
    "max_tokens": 17,
}
KEYS = rollout_keys(jax.random.key(3), 4, 2)


@functools.cache
def pocket():
    model, params = load_checkpoint(POCKET)
    return build_policy(model), params


@functools.cache
def game():
    env, dialogue = players.game("sokoban", words="pocket")
    facts = build_facts(env, players.tokenizer("pocket"))
    return env, dialogue.replace(facts=facts)


@functools.cache
def play(**weights):
    policy, params = pocket()
    env, dialogue = game()
    collect = make_collect(
        env,
        env.default_params,
        policy,
        mesh=make_mesh(data=1, fsdp=1, tensor=1),
        num_groups=4,
        group_size=2,
        rules=dataclasses.replace(players.LIMITS, bonus=build_bonus(env, **weights)),
        temperature=1.3,
        top_k=None,
        top_p=None,
        decode_chunk_tokens=4,
    )
    return collect(params, dialogue, KEYS)


def slow_bonus(env):
    """The same from bytes and a board, with the settings `ALL`."""
    landmarks = env.landmarks
    names = [(env.symbols[one.symbol], one.words) for one in landmarks]

    def bonus(reply, has_format, num_tokens, boards):
        true = [0, 0]
        for i, board in enumerate(boards):
            stated = read_facts(reply, names, i)
            for landmark, cell in zip(landmarks, stated, strict=True):
                if cell and cell[0] < board.shape[0] and cell[1] < board.shape[1]:
                    true[i] += board[cell] in landmark.shown_as
        in_band = ALL["min_tokens"] <= num_tokens <= ALL["max_tokens"]
        return (
            ALL["format"] * has_format
            + ALL["length"] * in_band
            + ALL["facts"] * true[0] / len(landmarks)
            + ALL["prediction"] * true[1] / len(landmarks)
        )

    return bonus


@pytest.mark.slow
def test_rollouts_pay_what_the_slow_loop_pays():
    env, dialogue = game()
    policy, params = pocket()
    loop = RolloutLoop(
        env,
        env.default_params,
        policy,
        dialogue,
        players.tokenizer("pocket"),
        budget=players.BUDGET,
        max_reply_tokens=players.REPLY_TOKENS,
        format_penalty=-0.1,
        temperature=1.3,
        bonus=slow_bonus(env),
    )
    expected = loop.collect(params, KEYS)
    paid = play(**ALL)
    np.testing.assert_array_equal(paid.tokens, expected.tokens)
    np.testing.assert_allclose(paid.turns.bonus, expected.turns.bonus, atol=1e-6)
    # Thoughts that are right, wrong and missing must all be among them.
    assert len(np.unique(np.round(np.asarray(paid.turns.bonus), 3))) > 3
    assert not np.any(np.asarray(paid.turns.bonus)[~np.asarray(paid.turns.played)])


@pytest.mark.slow
def test_nobody_but_the_learner_sees_a_bonus():
    paid, unpaid = play(**ALL), play(**OFF)
    assert abs(rollout_metrics(paid, group_size=2)["bonus"]) > 0.1
    zeros = jnp.zeros_like(paid.turns.bonus)
    same = paid.replace(turns=paid.turns.replace(bonus=zeros))
    jax.tree.map(np.testing.assert_array_equal, same, unpaid)


def written(**changes):
    length = jnp.array([0, 5, 6, 9, 10])
    zeros = jnp.zeros((5, 3), jnp.int32)
    has_format = jnp.array([False, True, True, False, True])
    reply = Reply(
        tokens=zeros,
        log_probs=zeros.astype(jnp.float32),
        length=length,
        is_cut=zeros > 0,
    )
    parsed = ParsedAnswer(
        names=zeros, num_names=length, num_listed=length, has_format=has_format
    )
    is_true = jnp.array([[1, 1], [1, 0], [0, 0], [0, 1], [1, 1]]) > 0
    return Written(reply, parsed, is_true, is_foreseen=~is_true).replace(**changes)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("format", {}, [0, 1, 1, 0, 1]),
        ("length", {"min_tokens": 6, "max_tokens": 9}, [0, 0, 1, 1, 0]),
        ("length", {"min_tokens": 6, "max_tokens": 10}, [0, 0, 1, 1, 1]),
        ("length", {"min_tokens": 5, "max_tokens": 5}, [0, 1, 0, 0, 0]),
        ("facts", {}, [1, 0.5, 0, 0.5, 1]),
        ("prediction", {}, [0, 0.5, 1, 0.5, 0]),
    ],
)
def test_entries(name, options, expected):
    np.testing.assert_allclose(BONUSES[name](written(), **options), expected)


def test_a_cell_off_the_board_is_never_true():
    landmarks = envs.make("sokoban").landmarks
    shape = (len(landmarks),)
    board = jnp.full((6, 6), landmarks[0].symbol)
    for row, col, is_stated, expected in (
        (5, 5, True, [True, False, False]),
        (6, 5, True, [False] * 3),
        (5, 999, True, [False] * 3),
        (5, 5, False, [False] * 3),
    ):
        said = Statements(
            is_stated=jnp.full(shape, is_stated),
            row=jnp.full(shape, row),
            col=jnp.full(shape, col),
        )
        found = is_there(board, landmarks, said)
        np.testing.assert_array_equal(found, expected)


def test_what_cannot_be_paid_is_refused():
    bandit, sokoban = envs.make("bandit"), envs.make("sokoban")
    with pytest.raises(
        ValueError,
        match=r"Bandit has no landmarks.*facts and bonus.prediction to None",
    ):
        build_bonus(bandit, **OFF | {"facts": 1.0})
    with pytest.raises(ValueError, match=r"Bandit has no landmarks"):
        build_bonus(bandit, **OFF | {"prediction": 1.0})
    with pytest.raises(ValueError, match=r"keep configs/base.py in step"):
        build_bonus(sokoban, format=1.0)
    assert build_bonus(bandit, **OFF) is None
