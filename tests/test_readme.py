"""The example game of the docs works as printed; what pages name and link exists."""

import pathlib
import re
import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.base import PlayBudget
from tests.envs import example

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "ragen_jax").glob("*/README.md")),
]


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


def named(page):
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_and_files_exist(page):
    # NAME stands for a name of the reader's choice.
    text = page.read_text().replace("configs/NAME.py", "").replace("envs/NAME/", "")
    for module in re.findall(r"python -m ((?:launch|benchmarks)[\w.]+)", text):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module
    for config in re.findall(r"--config=(configs/\w+\.py)", text):
        assert (ROOT / config).exists(), config
    for path in re.findall(
        r"`((?:ragen_jax|envs|configs|launch|benchmarks)/[\w/]+\.\w+)`", text
    ):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_presets_exist(page):
    """Those behind a file's name, as in `--config=configs/sokoban.py:grpo`."""
    # Words in capitals, as in sft.py:TASK,SIZE, stand for others.
    words = re.findall(
        r"--config=(configs/\w+\.py):([a-z](?:[\w.,-]*\w)?)", page.read_text()
    )
    for file, presets in set(words):
        runpy.run_path(str(ROOT / file))["get_config"](presets)


def anchors(page):
    """The anchors of a page, as GitHub makes them of headings."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text())
    found = set(re.findall(r'<a id="([^"]+)">', text))
    for heading in re.findall(r"(?m)^#+ (.*)$", text):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        words = re.sub(r"[^\w\- ]", "", shown.lower())
        found.add(words.replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_to_a_file_and_a_heading(page):
    text = re.sub(r"(?ms)^```.*?^```|`[^`\n]*`", "", page.read_text())
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


def test_pages_that_the_code_names_exist():
    for folder in ("benchmarks", "configs", "envs", "launch", "ragen_jax", "studies"):
        for file in (ROOT / folder).rglob("*.py"):
            for path in re.findall(r"\bdocs/[\w-]+\.md", file.read_text("utf-8")):
                assert (ROOT / path).exists(), (file, path)
