"""Shortest ways to win by trying every action: an oracle for solvers, slow and plain.

In: a game and a few of its states. Out: the fewest actions that win according to
`step_env`, and sentences where `fewest_actions` and `solve` of the game disagree.
"""

import dataclasses
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from envs.base import NEVER, EnvParams, EnvState, PlayBudget, TextEnvironment

# Random outcomes that are tried for every action.
NUM_CHANCES = 4
_CHUNK = 512
_MOST_STATES = 20_000


@dataclasses.dataclass(frozen=True)
class Search:
    """Result of a search.

    Attributes:
      fewest: actions to a win from each state, `NEVER` where none was found.
      depth: every sequence of at most this many actions was tried.
      is_deterministic: no outcome depended on chance.
    """

    fewest: np.ndarray
    depth: int
    is_deterministic: bool


def solver_problems(
    env: TextEnvironment, levels: EnvState, budget: PlayBudget
) -> Iterator[str]:
    """Sentences where a solver disagrees with the search.

    With chance the search tries only some outcomes, so the solver may do better.
    """
    params, depth = env.default_params, budget.max_actions_per_episode
    searched = search(env, params, levels, depth)
    fewest = np.asarray(env.fewest_actions(levels, params))
    if (fewest > searched.fewest).any():
        yield "fewest_actions is more than a way to win takes"
    if not searched.is_deterministic:
        return
    if ((fewest < searched.fewest) & (fewest <= searched.depth)).any():
        yield "fewest_actions is less than any way to win takes"
    best = env.solve(levels, params, budget=budget, discount=1.0).best_success
    is_enough = searched.fewest <= depth
    if searched.depth == depth and not np.isclose(best, is_enough).all():
        yield (
            "best_success must be 1 where a way to win fits the budget, and 0 elsewhere"
        )


def search(
    env: TextEnvironment, params: EnvParams, states: EnvState, depth: int
) -> Search:
    """Try every action from each of `states`, and so on, up to `depth` actions.

    States that differ in their time alone count as one. Stops early where there are too
    many states.
    """
    successors = _make_successors(env, params)
    num_levels = len(jax.tree.leaves(states)[0])
    fewest = np.full(num_levels, NEVER)
    levels, is_deterministic = np.arange(num_levels), True
    seen = set(zip(levels.tolist(), _names(states), strict=True))
    for length in range(1, depth + 1):
        kept_levels, kept_states = [], []
        for first in range(0, len(levels), _CHUNK):
            # The last row again where fewer are left, so that one program serves all.
            rows = np.minimum(np.arange(first, first + _CHUNK), len(levels) - 1)
            chunk = jax.tree.map(lambda x, rows=rows: x[rows], states)
            after, is_won, is_over = successors(chunk)
            owners = np.broadcast_to(levels[rows][:, None, None], is_won.shape)
            won = np.unique(owners[np.asarray(is_won)])
            fewest[won] = np.minimum(fewest[won], length)
            flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), after)
            names = _names(flat)
            is_deterministic &= all(
                len(set(names[i : i + NUM_CHANCES])) == 1
                for i in range(0, len(names), NUM_CHANCES)
            )
            pairs = list(zip(owners.reshape(-1).tolist(), names, strict=True))
            fresh = []
            for i, is_end in enumerate(np.asarray(is_won | is_over).reshape(-1)):
                if not is_end and pairs[i] not in seen:
                    seen.add(pairs[i])
                    fresh.append(i)
            indices = np.asarray(fresh, np.int32)
            kept_levels.append(owners.reshape(-1)[indices])
            kept_states.append(jax.tree.map(lambda x, i=indices: x[i], flat))
        levels = np.concatenate(kept_levels)
        states = jax.tree.map(lambda *x: jnp.concatenate(x), *kept_states)
        if not len(levels):
            return Search(fewest, depth, is_deterministic)
        if len(seen) > _MOST_STATES:
            return Search(fewest, length, is_deterministic)
    return Search(fewest, depth, is_deterministic)


def _make_successors(env: TextEnvironment, params: EnvParams) -> Callable:
    """Build `states -> (after, is_won, is_over)`, by row, action and random outcome."""
    keys = jax.random.split(jax.random.key(0), NUM_CHANCES)
    actions = jnp.arange(env.num_actions, dtype=jnp.int32)

    def step(state, action, key):
        after = env.step_env(key, state, action, params)[1]
        is_won = env.is_success(after, params)
        return after, is_won, env.is_terminated(after, params)

    of_keys = jax.vmap(step, in_axes=(None, None, 0))
    of_actions = jax.vmap(of_keys, in_axes=(None, 0, None))
    return jax.jit(
        lambda states: jax.vmap(of_actions, (0, None, None))(states, actions, keys)
    )


def _names(states: EnvState) -> list[bytes]:
    """The bytes of each state without its time."""
    leaves = []
    for leaf in jax.tree.leaves(states.replace(time=None)):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        array = np.asarray(leaf)
        leaves.append(array.reshape(len(array), -1))
    return [b"".join(leaf[i].tobytes() for leaf in leaves) for i in range(len(array))]
