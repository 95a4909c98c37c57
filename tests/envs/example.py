"""The example environment of docs/architecture.md, as printed."""

import functools
import linecache
import pathlib
import re
import types

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "architecture.md"


@functools.cache
def walk() -> type:
    """The class."""
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    module = types.ModuleType("walk")
    # `inspect` reads it here.
    lines = source.splitlines(keepends=True)
    linecache.cache["<walk>"] = (len(source), None, lines, "<walk>")
    exec(compile(source, "<walk>", "exec"), module.__dict__)
    return module.Walk
