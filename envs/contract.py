"""The contract of an environment, as checks that anybody's environment can be put to.

In: an environment. Out: nothing, or a `ContractError` that says what is broken. Each
check is an entry of `CHECKS`; the tests run them on every game of the table, and
`launch.check` on a class of yours. Play is random, from fixed keys.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from envs.base import FEWEST_LEVELS, EnvParams, PlayBudget, TextEnvironment
from envs.search import solver_problems
from envs.templates import Cells, Choice, Grid, Number

NUM_ROWS = 64
NUM_STEPS = 10
# Random play meets a time limit of this many steps.
_TIME_LIMIT = 7
_BUDGET = PlayBudget(max_turns=3, max_actions_per_turn=2, max_actions_per_episode=6)


class ContractError(AssertionError):
    """What an environment does against its contract."""


def expect(holds: object, sentence: str) -> None:
    """Raise `ContractError` with the sentence unless all of `holds` is true."""
    if not np.all(np.asarray(holds)):
        raise ContractError(sentence)


def problem(check: "Check", subject: "Subject") -> str | None:
    """What a check finds, None if nothing; an error of the environment counts."""
    try:
        check(subject)
    except ContractError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@dataclasses.dataclass(eq=False)
class Subject:
    """An environment under test, and its random play.

    Attributes:
      env: the environment.
    """

    env: TextEnvironment

    @functools.cached_property
    def params(self) -> EnvParams:
        """Default parameters, with a time limit that random play meets."""
        params = self.env.default_params
        limit = min(_TIME_LIMIT, params.max_steps_in_episode)
        return params.replace(max_steps_in_episode=limit)

    def reset(self, seed: int = 0, *, backwards: bool = False):
        """Observations and states of `NUM_ROWS` levels."""
        keys = jax.random.split(jax.random.key(seed), NUM_ROWS)
        return self._reset(keys[::-1] if backwards else keys, self.params)

    @functools.cached_property
    def play(self) -> list[tuple]:
        """[(states, outcome of `step_env`)], more steps than any episode has."""
        _, states = self.reset()
        history = []
        for i in range(NUM_STEPS):
            key = jax.random.fold_in(jax.random.key(1), i)
            noise_key, action_key = jax.random.split(key)
            shape = (NUM_ROWS,)
            actions = jax.random.randint(action_key, shape, 0, self.env.num_actions)
            keys = jax.random.split(noise_key, NUM_ROWS)
            outcome = self._step(keys, states, actions, self.params)
            history.append((states, outcome))
            states = outcome[1]
        return history

    def fact(self, name: str, states) -> np.ndarray:
        """One of the environment's predicates, per row."""
        method = getattr(self.env, name)
        return np.asarray(jax.vmap(method, in_axes=(0, None))(states, self.params))

    @functools.cached_property
    def num_traces(self) -> list[None]:
        """Gets an item every time `step_env` is traced."""
        return []

    @functools.cached_property
    def _reset(self):
        return jax.jit(jax.vmap(self.env.reset_env, in_axes=(0, None)))

    @functools.cached_property
    def _step(self):
        def step(key, state, action, params):
            self.num_traces.append(None)
            return self.env.step_env(key, state, action, params)

        return jax.jit(jax.vmap(step, in_axes=(0, 0, 0, None)))


def rows(tree) -> list:
    """One pytree of NumPy arrays per row."""
    leaves, structure = jax.tree.flatten(jax.device_get(tree))
    return [jax.tree.unflatten(structure, row) for row in zip(*leaves, strict=True)]


def same_key_same_level(subject: Subject) -> None:
    """The same key gives the same level, whatever the neighbouring rows."""
    once, again = subject.reset(5), subject.reset(5)
    expect(_are_equal(once, again), "reset_env gives another level for the same key")
    backwards = rows(subject.reset(5, backwards=True)[1])[::-1]
    pairs = zip(backwards, rows(once[1]), strict=True)
    expect(
        [_are_equal(a, b) for a, b in pairs], "levels depend on the rows next to them"
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
        expect(_shapes(states) == _shapes(after), "step_env changes the state's shapes")
        expect(
            _shapes(obs) == _shapes(first_obs), "step_env and reset_env observe unlike"
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
                expect(_are_equal(before, now), "a finished state changes when stepped")
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
            is_same = _are_equal(before, now.replace(time=before.time))
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
    expect(best.max() > 0, f"no level can be won within {_BUDGET}")


def the_solver_agrees_with_a_search(subject: Subject) -> None:
    """The solver claims what trying every action finds, on a few levels."""
    levels = jax.tree.map(lambda x: x[:8], subject.reset()[1])
    for sentence in solver_problems(subject.env, levels, _BUDGET):
        raise ContractError(sentence)


def text_fields_fit_the_template(subject: Subject) -> None:
    """The fields of a state have the names, shapes and ranges of the template."""
    env = subject.env
    fields = jax.jit(jax.vmap(env.text_fields, in_axes=(0, None)))
    for states, _ in subject.play:
        values = jax.device_get(fields(states, subject.params))
        expect(
            set(values) == set(env.template.fields),
            f"text_fields has {sorted(values)}, the template "
            f"{sorted(env.template.fields)}",
        )
        for part in env.template.parts:
            if not isinstance(part, str):
                for problem in _field_problems(part, values[part.name]):
                    raise ContractError(f"the field {part.name} {problem}")


def _field_problems(part, value: np.ndarray) -> Iterator[str]:
    if not (np.issubdtype(value.dtype, np.integer) or value.dtype == np.bool_):
        yield f"must be whole numbers; it is {value.dtype}"
    is_board = isinstance(part, Grid | Cells)
    shape = (NUM_ROWS, part.rows, part.cols) if is_board else (NUM_ROWS,)
    if value.shape != shape:
        yield f"has shape {value.shape[1:]}; the template has {shape[1:]}"
    if isinstance(part, Choice | Grid):
        options = part.options if isinstance(part, Choice) else part.symbols
        if not ((value >= 0) & (value < len(options))).all():
            yield f"is outside 0 to {len(options) - 1}"
    elif isinstance(part, Number):
        if not ((value >= part.minimum) & (value <= part.maximum)).all():
            yield f"is outside {part.minimum} to {part.maximum}"
    elif ((value != 0).sum((1, 2)) > part.max_cells).any():
        yield f"lists more than {part.max_cells} cells"


def the_legend_explains_the_picture(subject: Subject) -> None:
    """The instruction names every symbol, and a rendered board has no other."""
    env = subject.env
    expect(env.instruction, "there is no instruction")
    expect(not env.instruction.endswith("\n"), "the instruction ends with a newline")
    words = re.split(r"[\s.,:;!?()]+", env.instruction) + env.instruction.split()
    for part in env.template.parts:
        if not isinstance(part, Grid):
            continue
        for symbol in part.symbols:
            expect(symbol in words, f"the instruction does not explain {symbol!r}")
        text = env.render(rows(subject.reset()[1])[0], subject.params)
        picture = "".join(text.splitlines(keepends=True)[-part.rows :])
        expect(
            re.fullmatch(part.pattern, picture),
            "a rendered board is not whole, or has symbols that the template lacks",
        )


def text_is_whole_lines(subject: Subject) -> None:
    """Rendered states are whole lines without gaps."""
    states = rows(subject.reset()[1])[:16]
    for text in (subject.env.render(state, subject.params) for state in states):
        expect(text.endswith("\n"), "a rendered state must end with a newline")
        expect("\n\n" not in text, "a rendered state has an empty line")


def action_names_are_distinct_words(subject: Subject) -> None:
    """The vocabulary has no word twice, and a level gives every action another one."""
    env = subject.env
    names = jax.vmap(env.action_names, in_axes=(0, None))(
        subject.reset()[1], subject.params
    )
    vocabulary = [name.strip().lower() for name in env.action_vocabulary]
    expect(
        len(set(vocabulary)) == len(vocabulary), "action_vocabulary has a word twice"
    )
    expect([bool(word) for word in vocabulary], "action_vocabulary has an empty word")
    expect(
        names.shape == (NUM_ROWS, env.num_actions),
        "action_names must name every action",
    )
    for row in np.asarray(names):
        expect(row >= 0, "action_names are indices into action_vocabulary, from 0")
        expect(
            len({env.action_vocabulary[i] for i in row}) == env.num_actions,
            "two actions of a state have the same name",
        )


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


def _are_equal(left, right) -> bool:
    leaves = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in leaves)


def _shapes(tree) -> list[tuple]:
    return [(x.shape, x.dtype) for x in jax.tree.leaves(tree)]


Check = Callable[[Subject], None]
CHECKS: tuple[Check, ...] = (
    same_key_same_level,
    few_levels_hold_none_out,
    training_and_validation_differ,
    steps_return_five_values,
    ends_are_separate_facts,
    finished_states_are_frozen,
    ineffective_actions_move_only_the_clock,
    levels_are_solvable_and_unsolved,
    text_fields_fit_the_template,
    the_legend_explains_the_picture,
    text_is_whole_lines,
    action_names_are_distinct_words,
    spaces_contain_what_is_given,
    the_solver_agrees_with_a_search,
)
