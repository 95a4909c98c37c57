"""docs/host_games.md: its example is the file that it names."""

import pathlib
import re

from ragen_jax.host_games import echo

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "host_games.md"


def test_the_example_is_echo():
    (text,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert text == pathlib.Path(echo.__file__).read_text()
