"""The example environment of docs/architecture.md, as printed."""

import functools
import linecache
import pathlib
import re
import types

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "architecture.md"


def source() -> str:
    (text,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return text


@functools.cache
def walk() -> type:
    text = source()
    module = types.ModuleType("walk")
    # `inspect` reads it here.
    lines = text.splitlines(keepends=True)
    linecache.cache["<walk>"] = (len(text), None, lines, "<walk>")
    exec(compile(text, "<walk>", "exec"), module.__dict__)
    return module.Walk
