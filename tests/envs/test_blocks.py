"""States in blocks: the same results, and one program for any number of states."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.base import NEVER, PlayBudget, ask_solver
from envs.blocks import BLOCK_ROWS, in_blocks


@pytest.mark.parametrize(
    "num_rows", [1, BLOCK_ROWS, BLOCK_ROWS + 1, 3 * BLOCK_ROWS - 7]
)
def test_blocks_are_put_together_in_order(num_rows):
    sizes = []

    def double(rows):
        sizes.append(len(rows["a"]))
        return {"twice": jnp.asarray(2 * rows["a"]), "sum": rows["b"].sum(axis=1)}

    rows = {"a": np.arange(num_rows), "b": np.arange(2 * num_rows).reshape(-1, 2)}
    result = in_blocks(double, jax.tree.map(jnp.asarray, rows))
    np.testing.assert_array_equal(result["twice"], 2 * rows["a"])
    np.testing.assert_array_equal(result["sum"], rows["b"].sum(axis=1))
    assert set(sizes) == {BLOCK_ROWS}
    assert len(sizes) == -(-num_rows // BLOCK_ROWS)


@pytest.mark.parametrize("num_boxes", [1, 2])
def test_a_solver_is_asked_with_blocks_if_it_is_an_array_program(num_boxes):
    """A search on the host would do the work of a room once for each block."""
    env = envs.make("sokoban", num_boxes=num_boxes)
    params, budget = env.default_params, PlayBudget(5, 5, 10)
    keys = jax.random.split(jax.random.key(0), 3)
    _, levels = jax.jit(jax.vmap(env.reset_env, (0, None)))(keys, params)
    seen = []

    # By position, as a solver of the user's may name its arguments otherwise.
    def solve(levels, numbers, **how):
        # It may use what NumPy's arrays lack.
        assert levels.time.at[0].add(1)[0] == 1
        seen.append(len(levels.time))
        return env.solve(levels, numbers, **how)

    how = {"budget": budget, "discount": 1.0}
    best = ask_solver(env, solve, jax.device_get(levels), params, **how).best_success
    assert seen == [BLOCK_ROWS if num_boxes == 1 else 3]
    wanted = env.solve(levels, params, budget=budget, discount=1.0).best_success
    np.testing.assert_array_equal(best, wanted)
    fewest = ask_solver(env, env.fewest_actions, levels, params)
    np.testing.assert_array_equal(best, (fewest <= budget.num_actions) * 1.0)
    assert np.all(fewest < NEVER)
