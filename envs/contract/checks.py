"""The contract of an environment, as checks for any environment.

In: an environment. Out: nothing, or a `ContractError` that says what is broken. Each
check is an entry of `CHECKS`; the tests run them on every game of the table,
`launch.check` runs them on a user's class. Play is random, from fixed keys.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from envs.base import EXACT, FEWEST_LEVELS, PlayBudget
from envs.contract.search import solver_problems
from envs.contract.subject import (
    NUM_ROWS,
    NUM_STEPS,
    Check,
    ContractError,
    Subject,
    are_equal,
    expect,
    rows,
    shapes,
)
from envs.contract.text_checks import TEXT_CHECKS

_BUDGET = PlayBudget(max_turns=3, max_actions_per_turn=2, max_actions_per_episode=6)


def same_key_same_level(subject: Subject) -> None:
    """A level depends on its key alone, not on the neighbouring rows."""
    once, again = subject.reset(5), subject.reset(5)
    expect(are_equal(once, again), "reset_env gives another level for the same key")
    backwards = rows(subject.reset(5, backwards=True)[1])[::-1]
    pairs = zip(backwards, rows(once[1]), strict=True)
    expect(
        [are_equal(a, b) for a, b in pairs], "levels depend on the rows next to them"
    )


def few_levels_hold_none_out(subject: Subject) -> None:
    """A game with few levels holds none out, one with many does."""
    boards = np.concatenate([np.asarray(subject.reset(seed)[0]) for seed in range(16)])
    num_levels = len({board.tobytes() for board in boards})
    expect(
        subject.env.holds_out_levels == (num_levels >= FEWEST_LEVELS),
        f"holds_out_levels is {subject.env.holds_out_levels}, but 1,024 resets show "
        f"{num_levels} different levels; it must be True from {FEWEST_LEVELS} on",
    )


def training_and_validation_differ(subject: Subject) -> None:
    """No level is in both splits, if the game holds levels out."""
    if not subject.env.holds_out_levels:
        return
    keys = jax.random.split(jax.random.key(3), NUM_ROWS)
    for split, is_held_out in (("training", False), ("validation", True)):
        draw = functools.partial(subject.env.reset_split, split=split)
        levels = jax.jit(jax.vmap(draw, in_axes=(0, None)))(keys, subject.params)
        expect(
            subject.fact("is_held_out", levels) == is_held_out,
            f"reset_split gives a level that does not belong to {split}",
        )


def steps_return_five_values(subject: Subject) -> None:
    """Steps trace once and return what gymnax's do, in fixed shapes and types."""
    first_obs, _ = subject.reset()
    for states, (obs, after, reward, terminated, info) in subject.play:
        expect(shapes(states) == shapes(after), "step_env changes the state's shapes")
        expect(
            shapes(obs) == shapes(first_obs), "step_env and reset_env observe unlike"
        )
        expect(
            reward.shape == (NUM_ROWS,) and reward.dtype == jnp.float32,
            f"a reward must be a float32 scalar; it is {reward.dtype}",
        )
        expect(np.isfinite(reward), "a reward is not finite")
        expect(terminated.dtype == jnp.bool_, "terminated must be a bool")
        expect(
            set(info) == {"success", "effective"},
            f"info must have success and effective alone; it has {sorted(info)}",
        )
        expect(
            [value.dtype == jnp.bool_ for value in info.values()],
            "info must hold bools",
        )
        expect(after.time.dtype == jnp.int32, "the state's time must be int32")
    expect(len(subject.num_traces) == 1, "step_env is traced again at every step")
    expect(
        subject.params.max_steps_in_episode < NUM_STEPS, "max_steps_in_episode is wrong"
    )


def ends_are_separate_facts(subject: Subject) -> None:
    """Terminated, truncated and success are separate facts that agree with `info`."""
    limit = subject.params.max_steps_in_episode
    for _, (_, after, _, terminated, info) in subject.play:
        expect(
            terminated == subject.fact("is_terminated", after),
            "step_env's terminated differs from is_terminated of the new state",
        )
        expect(
            info["success"] == subject.fact("is_success", after),
            "info['success'] differs from is_success of the new state",
        )
        expect(
            subject.fact("is_truncated", after) == (np.asarray(after.time) >= limit),
            "is_truncated must be time >= max_steps_in_episode",
        )
        expect(
            np.asarray(terminated) | ~np.asarray(info["success"]),
            "success must end the game",
        )


def finished_states_are_frozen(subject: Subject) -> None:
    """Stepping a finished state changes nothing and pays nothing; others count time."""
    num_finished = 0
    for states, (_, after, reward, _, info) in subject.play:
        finished = subject.fact("is_terminated", states)
        finished = finished | subject.fact("is_truncated", states)
        num_finished += finished.sum()
        for is_over, before, now in zip(
            finished, rows(states), rows(after), strict=True
        ):
            if is_over:
                expect(are_equal(before, now), "a finished state changes when stepped")
            else:
                expect(now.time == before.time + 1, "a step must add 1 to time")
        expect(~np.asarray(reward)[finished].astype(bool), "a finished state pays")
        expect(
            ~np.asarray(info["effective"])[finished],
            "an action in a finished state is effective",
        )
    expect(num_finished >= NUM_ROWS, "random play never finishes")


def ineffective_actions_move_only_the_clock(subject: Subject) -> None:
    """`effective` is true where something besides the time changed."""
    for states, (_, after, _, _, info) in subject.play:
        triples = zip(
            np.asarray(info["effective"]), rows(states), rows(after), strict=True
        )
        for is_effective, before, now in triples:
            is_same = are_equal(before, now.replace(time=before.time))
            expect(
                is_same != is_effective,
                "info['effective'] must be true where the state changed, false where "
                "only its time did",
            )


def levels_are_solvable_and_unsolved(subject: Subject) -> None:
    """A new level is neither won nor over, and the solver finds a way."""
    env = subject.env
    limit = env.default_params.max_steps_in_episode
    params = subject.params.replace(max_steps_in_episode=limit)
    _, states = subject.reset()
    expect(~subject.fact("is_success", states), "a new level is won already")
    expect(~subject.fact("is_terminated", states), "a new level is over already")
    solution = env.solve(states, params, budget=_BUDGET, discount=0.99)
    expect(
        solution.action_values.shape == (NUM_ROWS, env.num_actions),
        "solve must value every action of every state",
    )
    expect(
        np.asarray(solution.value) == np.asarray(solution.action_values).max(1),
        "solve's value must be the largest of its action values",
    )
    value, best = np.asarray(solution.value), np.asarray(solution.best_success)
    expect(np.isfinite(value) & (value > 0), "a new level cannot be won")
    expect((best >= 0) & (best <= 1), "best_success must lie between 0 and 1")
    if env.solves == EXACT:
        fewest = int(np.min(np.asarray(env.fewest_actions(states, params))))
        enough = PlayBudget(fewest, 1, fewest)
        best = env.solve(states, params, budget=enough, discount=0.99).best_success
        expect(np.max(best) > 0, f"no level can be won within {fewest} actions")


def the_solver_agrees_with_a_search(subject: Subject) -> None:
    """The solver claims what trying every action finds, on a few levels."""
    if subject.env.solves != EXACT:
        return
    levels = jax.tree.map(lambda x: x[:8], subject.reset()[1])
    for sentence in solver_problems(subject.env, levels, _BUDGET):
        raise ContractError(sentence)


def spaces_contain_what_is_given(subject: Subject) -> None:
    """The spaces describe observations and actions."""
    env, params = subject.env, subject.params
    space = env.observation_space(params)
    for _, (obs, *_) in subject.play:
        expect(
            obs.dtype == space.dtype and obs.shape == (NUM_ROWS, *space.shape),
            "observation_space has another shape or type than the observations",
        )
        expect(
            [bool(space.contains(o)) for o in obs[:8]],
            "an observation lies outside observation_space",
        )
    expect(
        env.action_space(params).n == env.num_actions,
        "action_space and num_actions differ",
    )


CHECKS: tuple[Check, ...] = (
    same_key_same_level,
    few_levels_hold_none_out,
    training_and_validation_differ,
    steps_return_five_values,
    ends_are_separate_facts,
    finished_states_are_frozen,
    ineffective_actions_move_only_the_clock,
    levels_are_solvable_and_unsolved,
    *TEXT_CHECKS,
    spaces_contain_what_is_given,
    the_solver_agrees_with_a_search,
)
