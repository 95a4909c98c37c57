"""The example game of the docs works as printed; commands and files they name exist."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.base import PlayBudget
from tests.envs import example

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture(scope="module")
def walk():
    return example.walk()(length=4)


def test_the_example_game_can_be_played(walk):
    params = walk.default_params
    key = jax.random.key(0)
    state = walk.reset_env(key, params)[1].replace(position=0, flag=3)
    assert walk.render(state, params) == "P__F\n"
    rewards = []
    for action in (0, 1, 1, 1, 1):
        _, state, reward, terminated, info = walk.step_env(key, state, action, params)
        rewards.append(float(reward))
    assert rewards == [0, 0, 0, 1, 0]
    assert bool(terminated)
    assert bool(info["success"])
    assert not bool(info["effective"])
    assert walk.render(state, params) == "___P\n"


def test_the_example_game_has_an_exact_solver(walk):
    states = jax.vmap(
        lambda p: walk.reset_env(jax.random.key(0), None)[1].replace(position=p, flag=3)
    )(jnp.arange(3))
    budget = PlayBudget(max_turns=1, max_actions_per_turn=2, max_actions_per_episode=9)
    solution = walk.solve(states, walk.default_params, budget=budget, discount=0.5)
    np.testing.assert_allclose(solution.value, [0.25, 0.5, 1.0])
    np.testing.assert_array_equal(solution.best_success, [0, 1, 1])
    assert np.all(np.argmax(solution.action_values, axis=1) == 1)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_files_exist(page):
    text = page.read_text()
    for module in re.findall(r"python -m ((?:launch|benchmarks)[\w.]+)", text):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module
    for path in re.findall(r"\]\((?!http|#)([^)#]+)", text):
        assert (page.parent / path).exists(), path
    for config in re.findall(r"--config=(configs/\w+\.py)", text):
        assert (ROOT / config).exists(), config
    for path in re.findall(
        r"`((?:ragen_jax|envs|configs|launch|benchmarks)/[\w/]+\.\w+)`", text
    ):
        assert (ROOT / path).exists(), path
