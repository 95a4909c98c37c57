"""Play compared with the solver, and bad play counted by hand."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.base import NEVER, PlayBudget
from ragen_jax.diagnostics.optimality import make_play_quality
from ragen_jax.program.build import POCKET, thought_reader
from ragen_jax.rollout.bonuses import BONUSES, build_bonus
from ragen_jax.rollout.collect import play_episodes
from ragen_jax.rollout.demonstrators import (
    MISREADING,
    PREDICTING,
    READING,
    Mixture,
    build_responder,
    compile_replies,
    with_predictions,
)
from ragen_jax.rollout.keys import rollout_keys
from ragen_jax.rollout.turns import EpisodeLimits
from ragen_jax.tasks.task import Task
from ragen_jax.text.dialogue import build_dialogue
from ragen_jax.text.tokenizer import load_tokenizer
from tests.reference import sokoban_oracle as oracle

REPLY_TOKENS = 24
# Slips are seen before the next action.
BUDGETS = {"sokoban": (3, 4, 10), "frozen_lake": (10, 1, 10), "bandit": (1, 1, 1)}
NUM_LEVELS, ROWS_PER_LEVEL = 8, 2
PAID = dict.fromkeys((*BONUSES, "min_tokens", "max_tokens")) | {"prediction": 1.0}


@functools.cache
def game(name, reply_tokens=REPLY_TOKENS) -> Task:
    env, tokenizer = envs.make(name), load_tokenizer(POCKET)
    budget = PlayBudget(*BUDGETS[name])
    dialogue = build_dialogue(
        env,
        tokenizer,
        budget=budget,
        max_reply_tokens=reply_tokens,
        style="terse",
        tokenization="symbols",
        length_hint_words=100,
    )
    rules = EpisodeLimits(budget, reply_tokens)
    return Task(name, env, env.default_params, rules, tokenizer, dialogue)


@functools.cache
def play(name, thoughts, noise):
    """Episodes of a demonstrator, two on each level."""
    return _player(name)(jnp.array([thoughts]), jnp.array([noise]))


@functools.cache
def _player(name):
    one = game(name)
    return _player_of(one, one.env.facts())


def _player_of(one, facts):
    keys = rollout_keys(jax.random.key(5), NUM_LEVELS, ROWS_PER_LEVEL)
    replies = compile_replies(
        one.env, one.tokenizer, facts, one.rules.budget, tokenization="symbols"
    )

    @jax.jit
    def episodes(thoughts, noise):
        responder = build_responder(
            one.env,
            one.params,
            replies,
            Mixture(jnp.ones(1), thoughts, noise, jnp.float32(0)),
            facts=facts,
            rules=one.rules,
            discount=one.env.hurry_discount,
        )
        return play_episodes(
            one.env,
            one.params,
            one.dialogue,
            responder,
            keys,
            rules=one.rules,
        )

    return episodes


def measure_of(one):
    return make_play_quality(
        one.env,
        one.params,
        one.rules.budget,
        reader=thought_reader(one),
        max_reply_tokens=one.dialogue.parser.max_reply_tokens,
    )


@functools.cache
def quality(name):
    return measure_of(game(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["frozen_lake", "bandit", "sokoban"])
def test_the_solver_plays_optimally(name):
    best = quality(name)(play(name, READING, 0.0), ROWS_PER_LEVEL)
    assert best["optimal_action_share"] == 1
    if name == "frozen_lake":
        # Slips may be lost to, and make ways longer.
        assert best["excess_actions"] >= 0
    else:
        assert best["solved_of_solvable"] == 1
        assert best["excess_actions"] == 0
    assert best.get("hallucination_rate", 0.0) == 0
    worse = quality(name)(play(name, MISREADING, 1.0), ROWS_PER_LEVEL)
    assert worse["optimal_action_share"] < 0.8
    assert worse["solved_of_solvable"] < best["solved_of_solvable"]
    assert ("hallucination_rate" in worse) == (name != "bandit")
    assert worse.get("hallucination_rate", 1.0) > 0.5
    # Nobody has said where anything will be.
    assert "misprediction_rate" not in best.keys() | worse.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["frozen_lake", "sokoban"])
def test_predictions_are_paid_and_measured(name):
    """Of demonstrators who imagine a turn without slips."""
    one = game(name, 36)
    dialogue = one.dialogue.replace(facts=thought_reader(one))
    rules = dataclasses.replace(one.rules, bonus=build_bonus(one.env, **PAID))
    one = dataclasses.replace(one, dialogue=dialogue, rules=rules)
    player = _player_of(one, with_predictions(one.env.facts()))
    rollout = player(jnp.array([PREDICTING]), jnp.array([0.0]))
    bonus = np.asarray(rollout.turns.bonus)[np.asarray(rollout.turns.played)]
    found = measure_of(one)(rollout, ROWS_PER_LEVEL)
    assert found["hallucination_rate"] == 0
    assert 1 - bonus.mean() == pytest.approx(found["misprediction_rate"], abs=1e-6)
    if name == "sokoban":
        assert found["misprediction_rate"] == 0
    else:
        # The player slips, and the goal stays.
        assert 0.1 < found["misprediction_rate"] < 0.5
    assert one.rules.bonus.numbers == {"prediction": 1.0}
    thrice = one.rules.bonus.with_numbers({"prediction": jnp.float32(3)})
    paid = dataclasses.replace(one, rules=dataclasses.replace(rules, bonus=thrice))
    more = _player_of(paid, with_predictions(one.env.facts()))
    more = more(jnp.array([PREDICTING]), jnp.array([0.0])).turns.bonus
    np.testing.assert_allclose(more, 3 * rollout.turns.bonus, rtol=1e-6)
    # The others of the mixture predict nothing.
    rollout = player(jnp.array([READING]), jnp.array([0.0]))
    found = measure_of(one)(rollout, ROWS_PER_LEVEL)
    assert found["hallucination_rate"] == 0
    assert "misprediction_rate" not in found
    assert not np.asarray(rollout.turns.bonus).any()


@pytest.mark.slow
def test_bad_sokoban_counted_by_hand():
    """Every action replayed and solved by the oracle, every thought read by a regex."""
    one, rollout = game("sokoban"), play("sokoban", MISREADING, 0.6)
    turns = jax.device_get(rollout.turns)
    optimal, excess, solvable, wrong = [], [], [], []
    for row in range(NUM_LEVELS * ROWS_PER_LEVEL):
        state = jax.tree.map(lambda x, row=row: x[row], rollout.initial_state)
        board = np.asarray(one.env.observe(None, state, None, one.params))
        level = oracle.read_level(board)
        fewest = oracle.solution_length(level)
        solvable.append(fewest is not None and fewest <= 10)
        for turn in np.flatnonzero(turns.played[row]):
            start, length = (
                x[row, turn] for x in (turns.reply_start, turns.reply_length)
            )
            ids = np.asarray(rollout.tokens)[row, start : start + length]
            thought = one.tokenizer.decode(ids.tolist()).split("</think>")[0]
            shown = level.board()
            for symbol, ids in (("P", (5, 6)), ("X", (3, 4)), ("O", (2, 3, 6))):
                cell = re.search(symbol + r"(\d)(\d)", thought)
                wrong.append(shown[int(cell[1]), int(cell[2])] not in ids)
            for action in turns.actions[row, turn]:
                if action < 0:
                    continue
                before = oracle.solution_length(level)
                level = oracle.move(level, int(action))
                after = oracle.solution_length(level)
                if before is not None:
                    optimal.append(after is not None and after == before - 1)
        if level.is_solved:
            excess.append(turns.num_executed[row].sum() - fewest)
    success = np.asarray(rollout.success)
    found = quality("sokoban")(rollout, ROWS_PER_LEVEL)
    assert found["optimal_action_share"] == pytest.approx(np.mean(optimal))
    assert found["excess_actions"] == pytest.approx(np.mean(excess))
    assert found["solved_of_solvable"] == pytest.approx(success[solvable].mean())
    assert found["hallucination_rate"] == pytest.approx(np.mean(wrong))
    assert len({np.mean(x) for x in (optimal, excess, wrong)} - {0, 1}) == 3


@pytest.mark.slow
def test_what_there_is_none_of_is_left_out():
    """Nothing solved: no excess. Nothing asked for a thought: none is wrong."""
    rollout = play("sokoban", MISREADING, 0.6)
    lost = rollout.replace(success=jnp.zeros_like(rollout.success))
    found = quality("sokoban")(lost, ROWS_PER_LEVEL)
    assert "excess_actions" not in found
    assert found["solved_of_solvable"] == 0
    one = game("sokoban")
    parser = one.dialogue.parser.replace(thinking=False)
    silent = dataclasses.replace(one, dialogue=one.dialogue.replace(parser=parser))
    found = measure_of(silent)(rollout, ROWS_PER_LEVEL)
    assert "hallucination_rate" not in found
    assert "optimal_action_share" in found


def test_fewest_actions():
    """Around a wall of holes, at the goal, and where there is no way."""
    env = envs.make("frozen_lake")
    _, level = env.reset_env(jax.random.key(0), env.default_params)
    holes = jnp.zeros((3, 16), bool).at[0, jnp.array([4, 5, 6])].set(True)
    holes = holes.at[2, jnp.array([1, 4])].set(True)
    states = jax.tree.map(lambda x: jnp.stack([x] * 3), level).replace(
        holes=holes,
        goal=jnp.array([8, 15, 15]),
        position=jnp.array([0, 15, 0]),
    )
    found = env.fewest_actions(states, env.default_params)
    np.testing.assert_array_equal(found, [8, 0, NEVER])
    bandit = envs.make("bandit")
    _, arm = bandit.reset_env(jax.random.key(0), bandit.default_params)
    arms = jax.tree.map(lambda x: jnp.stack([x] * 3), arm).replace(
        chosen=jnp.array([-1, 0, 1]), high_arm=jnp.array([1, 0, 0])
    )
    found = bandit.fewest_actions(arms, bandit.default_params)
    np.testing.assert_array_equal(found, [1, 0, NEVER])
