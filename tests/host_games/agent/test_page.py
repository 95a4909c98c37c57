"""docs/agents.md: its example is the file that it names, and its expert wins."""

import pathlib
import re

from ragen_jax.host_games.agent import react
from ragen_jax.host_games.agent.api import ApiServer
from ragen_jax.host_games.agent.calls import ChatAnswer
from ragen_jax.host_games.agent.program import ClientSettings, Task

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "agents.md"


def test_the_example_is_the_file():
    text, _ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert text == pathlib.Path(react.__file__).read_text()


def test_a_third_of_the_expert_s_episodes_are_won():
    """Against a server of its replies: the others answer too early."""
    rewards = []
    for seed in range(60):
        task = Task(seed, None, "training")

        def complete(call, task=task):
            return ChatAnswer(react.expert(task, call))

        with ApiServer(complete, model="expert") as server:
            client = ClientSettings(server.url, "none", "expert")
            rewards.append(react.episode(task, client))
    assert set(rewards) == {0.0, 1.0}
    assert 10 < sum(rewards) < 30


def test_no_pair_of_names_is_in_both_splits():
    asked = {}
    for split in ("training", "validation"):
        texts = set()

        def complete(call, texts=texts):
            texts.add(call.messages[1]["content"])
            return ChatAnswer("finish 0")

        with ApiServer(complete, model="m") as server:
            client = ClientSettings(server.url, "none", "m")
            for seed in range(80):
                react.episode(Task(seed, None, split), client)
        asked[split] = {
            frozenset(re.findall(r"age of (\w+) and (\w+)", x)[0]) for x in texts
        }
    assert not asked["training"] & asked["validation"]
    assert min(map(len, asked.values())) > 5


def test_tools():
    ages = {"Ada": 12}
    assert react.use(ages, "search Ada") == "12"
    assert react.use(ages, "search Bob") == "unknown"
    assert react.use(ages, "add 12 30") == "42"
    assert react.use(ages, "add 12") is None
