"""One HTML file that needs nothing else: style, program and data inside.

In: the contents. Out: text. Texts of models are data: they stand in a JSON block with
their markup characters escaped, the script sets them as text only, and the page's
content security policy lets no other script run and nothing be fetched.
"""

import base64
import hashlib
import importlib.resources
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from PIL import Image

from envs.pictures import draw_cell
from ragen_jax.runs.boards import png

# In the order they run.
_SCRIPTS = tuple(
    f"{name}.js"
    for name in (
        *("edges", "dom", "scales", "figure", "charts", "plane", "buckets", "alarms"),
        *("board", "turn", "viewer", "page"),
    )
)
# Pixels of a cell's side, and cells that are drawn; of the rest the symbol is written.
_CELL = 64
_MAX_DRAWINGS = 200
_FIELD = re.compile(r"\{\{(\w+)\}\}")


def make_page(contents: Mapping[str, Any]) -> str:
    """The report as one HTML document."""
    title = ", ".join(contents["games"]) or "runs"
    return fill_page(
        "page.html",
        styles=("style.css",),
        scripts=_SCRIPTS,
        title=escape_text(f"{title}: report"),
        data=escape_json(json.dumps(contents, ensure_ascii=False, allow_nan=False)),
        cells=escape_json(json.dumps(_drawings(contents["episodes"]["chosen"]))),
    )


def fill_page(
    template: str, *, styles: Sequence[str], scripts: Sequence[str], **fields: str
) -> str:
    """An HTML document whose content security policy allows its own parts alone.

    Args:
      template: file of `static/` with `{{name}}` for each field, and for `policy`,
        `style` and `script`.
      styles, scripts: files there.
      fields: markup.
    """
    style, script = ("\n".join(map(_read, names)) for names in (styles, scripts))
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; "
        f"script-src {_hash(script)}; img-src data:"
    )
    fields |= {"policy": policy, "style": style, "script": script}
    # In one pass: values that are filled in are never searched for fields.
    return _FIELD.sub(lambda match: fields[match.group(1)], _read(template))


def escape_json(text: str) -> str:
    """JSON that may stand in a script element: the same value, no markup.

    Line separators are escaped for readers that take JSON for JavaScript, and lone
    surrogates because UTF-8 has none.
    """
    special = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
    return special.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def series_colors(scheme: str = "light") -> list[str]:
    """Colours of the series as "#rrggbb", on a page that is "light" or "dark"."""
    light, dark = _read("style.css").split(".dark", 1)
    style = {"light": light, "dark": dark}[scheme]
    return re.findall(r"--s\d: (#[0-9a-f]{6});", style)


def escape_text(text: str) -> str:
    """A text inside an element."""
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _drawings(episodes: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Addresses of drawings, by what a cell means and then by its symbol."""
    # In the order of their first use.
    used = dict.fromkeys(
        (episode.get("legend", {}).get(symbol, ""), symbol)
        for episode in episodes
        for symbol in _symbols(episode)
    )
    drawings: dict[str, dict[str, str]] = {}
    for meaning, symbol in itertools.islice(used, _MAX_DRAWINGS):
        data = png(Image.fromarray(draw_cell(meaning, symbol, _CELL)))
        address = f"data:image/png;base64,{base64.b64encode(data).decode('ascii')}"
        drawings.setdefault(meaning, {})[symbol] = address
    return drawings


def _symbols(episode: Mapping[str, Any]) -> Iterator[str]:
    for turn in episode["turns"]:
        boards = [turn["board"]] if "board" in turn else []
        for board in boards + turn.get("boards_after", []):
            yield from itertools.chain.from_iterable(board)


def _hash(text: str) -> str:
    """Source expression of a content security policy."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _read(name: str) -> str:
    files = importlib.resources.files("ragen_jax.report")
    return (files / "static" / name).read_text(encoding="utf-8")
