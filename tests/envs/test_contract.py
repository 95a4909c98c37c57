"""What every environment of the table promises (see `TextEnvironment`)."""

import functools
import itertools

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.base import TextEnvironment
from envs.contract import checks as contract
from envs.contract import text_checks as contract_text
from envs.contract.subject import Subject, problem, rows
from envs.countdown.env import Countdown
from tests.envs import example

CASES = {name: (name, {}) for name in envs.ENVIRONMENTS} | {
    "walk": ("walk", {}),
    "bandit_test_reversed": ("bandit", {"split": "test", "reverse": True}),
    "frozen_lake_3": (
        "frozen_lake",
        {"size": 3, "observation": "grid_coord", "symbols": tuple("@.~*%!")},
    ),
    "sokoban_5x6": (
        "sokoban",
        {"rows": 5, "observation": "grid_coord", "symbols": tuple("W.GCBA@")},
    ),
    "sokoban_relative": ("sokoban", {"observation": "relative"}),
}
every_case = pytest.mark.parametrize("case", CASES)
SEARCHES = (
    contract.levels_are_solvable_and_unsolved,
    contract.the_solver_agrees_with_a_search,
)
# Best play is a table of all boards, which a smaller goal makes smaller.
SEARCHED = {"game2048": {"goal": 16}}
# Their own files hold their solvers to another one.
SOLVED_ELSEWHERE = ("countdown", "cube2x2", "sudoku", "game2048")


def promise(case, check):
    """A check of a case; searches that take long are slow."""
    is_slow = check in SEARCHES and case in SOLVED_ELSEWHERE
    marks = [pytest.mark.slow] if is_slow else []
    return pytest.param(case, check, id=f"{check.__name__}-{case}", marks=marks)


PROMISES = [promise(*both) for both in itertools.product(CASES, contract.CHECKS)]


@functools.cache
def subject(case, is_searched=False):
    name, kwargs = CASES[case]
    kwargs = kwargs | (SEARCHED.get(case, {}) if is_searched else {})
    return Subject(example.walk()() if name == "walk" else envs.make(name, **kwargs))


def test_every_entry_is_covered():
    names = {name for name, _ in CASES.values()}
    assert names == set(envs.ENVIRONMENTS) | {"walk"}
    assert set(envs.GYMNAX_IDS.values()) == set(envs.ENVIRONMENTS.values())


@pytest.mark.parametrize(("case", "check"), PROMISES)
def test_contract(case, check):
    check(subject(case, check in SEARCHES and case in SEARCHED))


@every_case
def test_levels_and_their_texts_are_many(case):
    env, (_, states) = subject(case).env, subject(case).reset(5)
    levels = {
        tuple(np.asarray(x).tobytes() for x in jax.tree.leaves(s)) for s in rows(states)
    }
    texts = {env.render(state, subject(case).params) for state in rows(states)[:16]}
    assert len(levels) > 10
    assert len(texts) > 4


class Broken(envs.Sokoban):
    """A game with one fault."""

    def __init__(self, fault):
        super().__init__()
        self.fault = fault
        if fault == "a symbol without a meaning":
            self.instruction = self.instruction.replace("_", "-")
        if fault == "a word twice":
            self.action_vocabulary = ("Up", "up ", "Left", "Right")
        if fault == "levels that are not held out":
            self.holds_out_levels = False

    def step_env(self, key, state, action, params):
        obs, after, reward, terminated, info = super().step_env(
            key, state, action, params
        )
        is_over = self.is_terminated(state, params) | self.is_truncated(state, params)
        if self.fault == "a finished state that moves":
            after = after.replace(time=state.time + 1)
        if self.fault == "a finished state that pays":
            reward = jnp.where(is_over, 1.0, reward)
        if self.fault == "a reward that is not finite":
            reward = reward / (after.time - 3).astype(jnp.float32)
        if self.fault == "every action counts as effective":
            info["effective"] = info["effective"] | ~is_over
        if self.fault == "more in info":
            info["steps"] = after.time
        if self.fault == "success at once":
            info["success"] = after.time > 0
        return obs, after, reward, terminated, info

    def action_names(self, state, params):
        names = super().action_names(state, params)
        return jnp.zeros_like(names) if self.fault == "one name for all" else names

    def text_fields(self, state, params):
        fields = super().text_fields(state, params)
        if self.fault == "a symbol that does not exist":
            return {name: value + 7 for name, value in fields.items()}
        return fields

    def solve(self, states, params, *, budget, discount):
        solution = super().solve(states, params, budget=budget, discount=discount)
        if self.fault == "a solver that sees no way":
            return solution.replace(value=-solution.value)
        if self.fault == "a solver that gives up":
            return solution.replace(best_success=0.5 * solution.best_success)
        return solution

    def fewest_actions(self, states, params):
        fewest = super().fewest_actions(states, params)
        if self.fault == "a solver that hopes":
            return jnp.maximum(fewest - 2, 1)
        return fewest + 2 * (self.fault == "a solver that strolls")


# Fault -> the check that finds it, and a part of its sentence.
FAULTS = {
    "a symbol without a meaning": (
        contract_text.the_legend_explains_the_picture,
        "does not explain '_'",
    ),
    "a word twice": (contract_text.action_names_are_distinct_words, "has a word twice"),
    "levels that are not held out": (
        contract.few_levels_hold_none_out,
        "holds_out_levels is False",
    ),
    "a finished state that moves": (
        contract.finished_states_are_frozen,
        "a finished state changes",
    ),
    "a finished state that pays": (
        contract.finished_states_are_frozen,
        "a finished state pays",
    ),
    "a reward that is not finite": (
        contract.steps_return_five_values,
        "a reward is not finite",
    ),
    "every action counts as effective": (
        contract.ineffective_actions_move_only_the_clock,
        "effective",
    ),
    "more in info": (contract.steps_return_five_values, "success and effective alone"),
    "success at once": (contract.ends_are_separate_facts, "differs from is_success"),
    "one name for all": (
        contract_text.action_names_are_distinct_words,
        "the same name",
    ),
    "a symbol that does not exist": (
        contract_text.text_fields_fit_the_template,
        "is outside 0 to 6",
    ),
    "a solver that sees no way": (
        contract.levels_are_solvable_and_unsolved,
        "largest of its action values",
    ),
    "a solver that hopes": (
        contract.the_solver_agrees_with_a_search,
        "less than any way to win takes",
    ),
    "a solver that strolls": (
        contract.the_solver_agrees_with_a_search,
        "more than a way to win takes",
    ),
    "a solver that gives up": (
        contract.the_solver_agrees_with_a_search,
        "best_success must be 1",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault):
    check, sentence = FAULTS[fault]
    assert sentence in problem(check, Subject(Broken(fault)))


class Misreading(Countdown):
    """Reads something else than it writes."""

    def __init__(self, fault: str):
        super().__init__()
        self.fault = fault
        if self.fault == "short":
            self.answer_bytes = 5

    def read_action(self, text, size, state, params):
        action = super().read_action(text, size, state, params)
        if self.fault == "nothing":
            return jnp.int32(-1)
        if self.fault == "another":
            return (action + 1) % self.num_actions
        return action


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("nothing", "does not read what action_template writes"),
        ("another", "reads another action than action_template writes"),
        ("short", "answer_bytes is 5"),
    ],
)
def test_a_game_that_misreads_is_found(fault, sentence):
    assert sentence in problem(
        contract_text.actions_are_read_as_written, Subject(Misreading(fault))
    )
    assert (
        problem(contract_text.actions_are_read_as_written, Subject(Countdown())) is None
    )


def test_a_game_without_action_names_says_how_many_actions_it_has():
    class Nameless(TextEnvironment):
        """Reads answers, and lacks `num_actions`."""

    with pytest.raises(NotImplementedError, match="sets num_actions"):
        Nameless().action_space()


@pytest.mark.parametrize("env_id", envs.GYMNAX_IDS)
def test_gymnax_users_can_play(env_id):
    env, params = gymnax.make(env_id)
    assert type(env) is envs.GYMNAX_IDS[env_id]
    obs, state = env.reset(jax.random.key(0), params)
    for i in range(3):
        key = jax.random.key(i)
        action = env.action_space(params).sample(key)
        obs, state, reward, terminated, truncated, info = env.step(
            key, state, action, params
        )
        assert bool(env.observation_space(params).contains(obs))
        assert np.isfinite(reward)
        assert set(info) > {"success", "effective", "final_observation"}
        if terminated or truncated:
            assert int(state.time) == 0


def test_registration_leaves_present_ids_alone():
    before = list(gymnax.registered_envs)
    envs.register_with_gymnax()
    assert gymnax.registered_envs == before
    assert all(before.count(env_id) == 1 for env_id in envs.GYMNAX_IDS)
