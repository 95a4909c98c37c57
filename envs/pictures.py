"""Pictures of boards: a drawing for each symbol, one beside the other.

In: boards of symbol ids, and what the symbols mean. Out: pixels, `uint8[H, W, 3]`, by
an array program. `cells.json` defines the look of every meaning that the built-in games
have; other symbols are written as they are. The report, animations and TensorBoard show
the same drawings.

Drawings are made once on the host, by Pillow, at several times their size and then made
smaller: no library of fonts or curves is needed while a game runs.
"""

import functools
import importlib.resources
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt8

# Default side of a cell, in pixels.
CELL = 16
SMALLEST_CELL, LARGEST_CELL = 8, 128
# Drawings are made at this multiple of their size and then reduced: smooth edges.
_SCALE = 4
# Of lines, in cells.
_LINE = 1 / 12

Look = Mapping[str, str]


def lay_cells(
    board: Int[Array, "rows cols"], cells: UInt8[Array, "symbols size size 3"]
) -> UInt8[Array, "height width 3"]:
    """The picture of a board of symbol ids."""
    _, size, _, _ = cells.shape
    num_rows, num_cols = board.shape
    # Lines of pixels are what is looked up: whole drawings would have to be transposed.
    lines = jnp.asarray(cells).reshape(-1, size * 3)
    which = board[:, None, :] * size + jnp.arange(size)[None, :, None]
    return lines[which].reshape(num_rows * size, num_cols * size, 3)


@functools.cache
def draw_cells(
    symbols: tuple[str, ...], meanings: tuple[str, ...], size: int = CELL
) -> UInt8[np.ndarray, "symbols size size 3"]:
    """The drawings of a game's symbols.

    Args:
      symbols: of the game, in the order of their ids.
      meanings: a name for each, or none at all.
      size: pixels of a cell's side.

    Raises:
      ValueError: the size is out of range, or two symbols look alike.
    """
    if not SMALLEST_CELL <= size <= LARGEST_CELL:
        raise ValueError(
            f"a cell of {size} pixels; use {SMALLEST_CELL} to {LARGEST_CELL}"
        )
    meanings = meanings or ("",) * len(symbols)
    pairs = list(zip(meanings, symbols, strict=True))
    cells = np.stack([draw_cell(*pair, size) for pair in pairs])
    drawn: dict[bytes, str] = {}
    for cell, symbol in zip(cells, symbols, strict=True):
        other = drawn.setdefault(cell.tobytes(), symbol)
        if other is not symbol:
            raise ValueError(
                f"the symbols {other!r} and {symbol!r} look alike in a cell of {size} "
                "pixels; give them other meanings (envs/cells.json) or more pixels"
            )
    cells.flags.writeable = False
    return cells


@functools.cache
def draw_cell(meaning: str, symbol: str, size: int) -> UInt8[np.ndarray, "size size 3"]:
    """The drawing of a symbol; one without a known meaning is written, on a shade."""
    from PIL import Image, ImageColor, ImageDraw  # games without pictures do without

    is_known = meaning in looks() and meaning != ""
    # Recorded boards may hold anything, also what no font can write.
    shown = symbol if symbol.isprintable() else "?"
    look = {**looks()[meaning if is_known else ""], "symbol": shown}
    if not is_known:  # the font lacks many a symbol: each gets a shade, too
        level = 100 + zlib.crc32(symbol.encode(errors="backslashreplace")) % 100
        look["ground"] = f"#{level:02x}{level:02x}{level:02x}"
    drawn = Image.new("RGB", (size * _SCALE, size * _SCALE), look["ground"])
    pen = _Pen(ImageDraw.Draw(drawn), size * _SCALE)
    SHAPES[look["shape"]](pen, look)
    pixels = np.array(drawn.reduce(_SCALE))
    # A darker edge to the right and below separates cells.
    edge = [channel // 8 * 7 for channel in ImageColor.getrgb(look["ground"])]
    pixels[-1, :] = pixels[:, -1] = edge
    pixels.flags.writeable = False
    return pixels


@functools.cache
def looks() -> dict[str, Look]:
    """Ground, shape and colours by meaning; "" is the look of all others."""
    file = importlib.resources.files("envs") / "cells.json"
    return json.loads(file.read_text(encoding="utf-8"))


class _Pen:
    """Draws in a cell; places and lengths are in cells, from the top left corner."""

    def __init__(self, draw: Any, side: int):
        self._draw, self._side = draw, side

    def disc(self, color: str, radius: float, x: float = 0.5, y: float = 0.5) -> None:
        center = (x * self._side, y * self._side)
        self._draw.circle(center, radius * self._side, fill=color)

    def ring(self, color: str) -> None:
        center, width = (self._side / 2,) * 2, round(self._side / 8)
        self._draw.circle(center, 0.39 * self._side, outline=color, width=width)

    def line(self, color: str, *points: float) -> None:
        self._draw.line(self._places(points), fill=color, width=self._width)

    def rectangle(self, color: str, *corners: float) -> None:
        self._draw.rectangle(self._places(corners), fill=color)

    def polygon(self, color: str, points: Sequence[float]) -> None:
        self._draw.polygon(self._places(points), fill=color)

    def write(self, color: str, text: str) -> None:
        """A text in the middle, smaller if it is long."""
        from PIL import ImageFont

        height = min(0.7, 1.5 / max(len(text), 1)) * self._side
        font = ImageFont.load_default(max(1, height))
        self._draw.text((self._side / 2,) * 2, text, color, font, anchor="mm")

    def _places(self, points: Sequence[float]) -> list[float]:
        return [self._side * x for x in points]

    @property
    def _width(self) -> int:
        return max(1, round(_LINE * self._side))


def _bricks(pen: _Pen, look: Look) -> None:
    for line in (
        (0, 1 / 3, 1, 1 / 3),
        (0, 2 / 3, 1, 2 / 3),
        (1 / 2, 0, 1 / 2, 1 / 3),
        (1 / 5, 1 / 3, 1 / 5, 2 / 3),
        (4 / 5, 1 / 3, 4 / 5, 2 / 3),
        (1 / 2, 2 / 3, 1 / 2, 1),
    ):
        pen.line(look["ink"], *line)


def _box(pen: _Pen, look: Look) -> None:
    pen.rectangle(look["ink"], 0.14, 0.14, 0.86, 0.86)
    for points in ((0.3, 0.3, 0.7, 0.7), (0.3, 0.7, 0.7, 0.3)):
        pen.line("white", *points)


def _full_box(pen: _Pen, look: Look) -> None:
    """A box that is where it belongs: without its cross, which shows in grey, too."""
    pen.rectangle(look["ink"], 0.14, 0.14, 0.86, 0.86)
    pen.disc("white", 0.16)


def _star(pen: _Pen, look: Look) -> None:
    corners = []
    for i in range(10):
        radius, angle = 0.18 if i % 2 else 0.42, math.pi * i / 5
        corners += [0.5 + radius * math.sin(angle), 0.5 - radius * math.cos(angle)]
    pen.polygon(look["ink"], corners)


def _target(pen: _Pen, look: Look) -> None:
    pen.ring(look["ink"])
    pen.disc(look["ink"], 0.1)


def _player(pen: _Pen, look: Look, radius: float = 0.3) -> None:
    pen.disc(look["ink"], radius)
    for side in (-1, 1):
        x, y = 0.5 + side * 0.38 * radius, 0.5 - 0.15 * radius
        pen.disc("white", 0.2 * radius, x, y)


def _player_on_star(pen: _Pen, look: Look) -> None:
    _star(pen, {"ink": look["second"]})
    _player(pen, look, 0.2)


def _player_in_ring(pen: _Pen, look: Look) -> None:
    pen.ring(look["second"])
    _player(pen, look, 0.25)


def _player_in_hole(pen: _Pen, look: Look) -> None:
    pen.disc(look["second"], 0.42)
    _player(pen, look, 0.25)


# Shape -> what draws it on the ground of its cell; a look also has its `symbol` there.
SHAPES: dict[str, Callable[[_Pen, Look], None]] = {
    "none": lambda pen, look: None,
    "text": lambda pen, look: pen.write(look["ink"], look["symbol"]),
    "bricks": _bricks,
    "box": _box,
    "full box": _full_box,
    "star": _star,
    "ring": _target,
    "hole": lambda pen, look: pen.disc(look["ink"], 0.42),
    "disc": _player,
    "disc on star": _player_on_star,
    "disc in ring": _player_in_ring,
    "disc in hole": _player_in_hole,
}
