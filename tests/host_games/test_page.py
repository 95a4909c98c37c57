"""docs/host_games.md: its examples are the file that it names, and two that play."""

import pathlib
import re
import shlex

import pytest

from ragen_jax.host_games import echo
from ragen_jax.host_games.adapters.gymnasium import GymnasiumGame
from ragen_jax.host_games.adapters.textarena import TextArenaGame
from ragen_jax.registry.functions import read_literal
from tests import commands

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "host_games.md"


def programs():
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_example_is_echo():
    text, _, _ = programs()
    assert text == pathlib.Path(echo.__file__).read_text()


@pytest.mark.live
def test_the_last_one_demonstrates(tmp_path, monkeypatch):
    commands.need("textarena")
    _, _, text = programs()
    (tmp_path / "my_secretary.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    options = {"id": "Secretary-v0", "expert": "my_secretary:careless"}
    game = TextArenaGame(**options, show_rules=False)
    replies = set()
    for seed in range(20):
        game.reset(seed)
        replies.update(game.solution())
    assert replies == {"[accept]", "[continue]"}


@pytest.mark.live
def test_the_other_one_describes_minigrid(tmp_path, monkeypatch):
    """With the options of the command that is printed."""
    commands.need("minigrid")
    _, text, _ = programs()
    (tmp_path / "my_minigrid.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    (command,) = re.findall(r"launch\.play[^`]*minigrid:[^`]*", PAGE.read_text())
    words = shlex.split(command)
    options = {
        name.removeprefix("--config.env.kwargs."): read_literal(value)
        for name, _, value in (word.partition("=") for word in words)
        if name.startswith("--config.env.kwargs.")
    }
    (host,) = (word for word in words if word.startswith("--config.env.host="))
    game = GymnasiumGame(id=host.partition("gymnasium:")[2], **options)
    assert game.reset(0).text.startswith("go to the ")
    turned = game.step("right").observation.text
    assert game.step("left").observation == game.reset(0)
    assert turned != game.reset(0).text
    assert re.search(r"\n(closed|open) \w+ door: \d ahead(, [+-]\d aside)?", turned)
