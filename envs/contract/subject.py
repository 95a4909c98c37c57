"""A game under test: its random play, from fixed keys, and how a check fails.

In: an environment. Out: a `Subject`, which `envs/contract/checks.py` and
`envs/contract/text_checks.py` put to their checks.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import numpy as np

from envs.base import EnvParams, TextEnvironment

NUM_ROWS = 64
NUM_STEPS = 10
# Random play meets a time limit of this many steps.
_TIME_LIMIT = 7


class ContractError(AssertionError):
    """A violation of the contract of an environment."""


def expect(holds: object, sentence: str) -> None:
    """Raise `ContractError` with the sentence unless all of `holds` is true."""
    if not np.all(np.asarray(holds)):
        raise ContractError(sentence)


def problem(check: "Check", subject: "Subject") -> str | None:
    """Sentence of a check that fails, None if it holds; any error is a failure."""
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


def are_equal(left, right) -> bool:
    leaves = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in leaves)


def shapes(tree) -> list[tuple]:
    return [(x.shape, x.dtype) for x in jax.tree.leaves(tree)]


Check = Callable[[Subject], None]
