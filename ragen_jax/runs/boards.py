"""Boards as pictures, drawn with Pillow, and as coloured text.

In: the boards of an episode as `ragen_jax.rollout.records` records them. Out: one
picture, the boards side by side; or a board for a terminal. `cells.json` defines the
look of every meaning; the report's page reads the same file.
"""

import functools
import importlib.resources
import io
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence

from PIL import Image, ImageColor, ImageDraw, ImageFont
from rich.cells import cell_len, set_cell_size
from rich.text import Text

# Pixels of a cell's side and between two boards.
CELL = 24
_GAP = 12
_LINE = 2  # pixels
# Milliseconds that a board of an animation is shown.
_FRAME_MS, _LAST_FRAME_MS = 500, 2000

Board = Sequence[Sequence[str]]
Look = Mapping[str, str]


def draw_boards(boards: Sequence[Board], legend: Mapping[str, str]) -> Image.Image:
    """Picture of boards from left to right.

    Args:
      boards: rows of symbols each; at least one.
      legend: meaning of each symbol; each symbol without a known
        meaning gets another shade.
    """
    pictures = [_draw_board(board, legend) for board in boards]
    width = sum(picture.width for picture in pictures) + _GAP * (len(pictures) - 1)
    height = max(picture.height for picture in pictures)
    whole = Image.new("RGB", (width, height), "white")
    left = 0
    for picture in pictures:
        whole.paste(picture, (left, 0))
        left += picture.width + _GAP
    return whole


def png(picture: Image.Image) -> bytes:
    """The picture as a PNG file."""
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def gif(boards: Sequence[Board], legend: Mapping[str, str]) -> bytes:
    """The boards one after the other as an animated GIF file, the last one longer."""
    frames = [draw_boards([board], legend) for board in boards]
    frames = [frame.resize((2 * frame.width, 2 * frame.height)) for frame in frames]
    durations = [_FRAME_MS] * (len(frames) - 1) + [_LAST_FRAME_MS]
    file = io.BytesIO()
    frames[0].save(
        file,
        "GIF",
        save_all=True,
        append_images=frames[1:],
        duration=durations,
        loop=0,
    )
    return file.getvalue()


def color_board(board: Board, legend: Mapping[str, str], width: int) -> Text:
    """The board in colours, every row followed by a newline.

    A cell has a blank behind its symbol, so that it looks square, where a row then fits
    into `width` columns. Symbols of several characters stand in the middle of as wide a
    column as the longest needs.
    """
    looks, text = _looks(), Text()
    cell = longest = max(cell_len(symbol) for row in board for symbol in row)
    if (cell + 1) * max(map(len, board)) <= width:
        cell += 1
    for row in board:
        for symbol in row:
            look = looks.get(legend.get(symbol, ""), looks[""])
            style = f"bold {look['ink']} on {look['ground']}"
            lead = " " * ((longest - cell_len(symbol)) // 2)
            text.append(set_cell_size(lead + symbol, cell), style)
        text.append("\n")
    return text


def _draw_board(board: Board, legend: Mapping[str, str]) -> Image.Image:
    size = (CELL * max(map(len, board), default=0), CELL * len(board))
    picture = Image.new("RGB", size, "white")
    for r, row in enumerate(board):
        for c, symbol in enumerate(row):
            cell = _draw_cell(legend.get(symbol, ""), symbol)
            picture.paste(cell, (c * CELL, r * CELL))
    return picture


@functools.cache
def _draw_cell(meaning: str, symbol: str) -> Image.Image:
    looks = _looks()
    look = looks.get(meaning, looks[""])
    ground = look["ground"]
    if look is looks[""]:  # the font lacks many a symbol: each gets a shade, too
        level = 100 + zlib.crc32(symbol.encode()) % 100
        ground = f"#{level:02x}{level:02x}{level:02x}"
    picture = Image.new("RGB", (CELL, CELL), ground)
    draw = ImageDraw.Draw(picture)
    SHAPES[look["shape"]](draw, {**look, "symbol": symbol})
    # A darker edge to the right and below separates cells.
    edge = tuple(channel // 8 * 7 for channel in ImageColor.getrgb(ground))
    draw.line([(0, CELL - 1), (CELL - 1, CELL - 1), (CELL - 1, 0)], fill=edge)
    return picture


def read_looks() -> str:
    """Text of `cells.json`: meaning -> ground, shape and colours."""
    file = importlib.resources.files("ragen_jax.runs") / "cells.json"
    return file.read_text(encoding="utf-8")


@functools.cache
def _looks() -> dict[str, Look]:
    return json.loads(read_looks())


def _disc(draw: ImageDraw.ImageDraw, color: str, radius: float) -> None:
    """A disc in the middle of the cell; the radius is in cells."""
    draw.circle((CELL / 2, CELL / 2), radius * CELL, fill=color)


def _ring(draw: ImageDraw.ImageDraw, color: str) -> None:
    draw.circle((CELL / 2, CELL / 2), 0.39 * CELL, outline=color, width=3)


def _bricks(draw: ImageDraw.ImageDraw, look: Look) -> None:
    def line(*points: float) -> None:
        draw.line([CELL * x for x in points], fill=look["ink"], width=_LINE)

    line(0, 1 / 3, 1, 1 / 3)
    line(0, 2 / 3, 1, 2 / 3)
    line(1 / 2, 0, 1 / 2, 1 / 3)
    line(1 / 5, 1 / 3, 1 / 5, 2 / 3)
    line(4 / 5, 1 / 3, 4 / 5, 2 / 3)
    line(1 / 2, 2 / 3, 1 / 2, 1)


def _box(draw: ImageDraw.ImageDraw, look: Look) -> None:
    corners = [0.14 * CELL, 0.14 * CELL, 0.86 * CELL, 0.86 * CELL]
    draw.rectangle(corners, fill=look["ink"])
    for points in ((0.3, 0.3, 0.7, 0.7), (0.3, 0.7, 0.7, 0.3)):
        draw.line([CELL * x for x in points], fill="white", width=_LINE)


def _star(draw: ImageDraw.ImageDraw, look: Look) -> None:
    corners = []
    for i in range(10):
        radius, angle = (0.18 if i % 2 else 0.42) * CELL, math.pi * i / 5
        x, y = radius * math.sin(angle), -radius * math.cos(angle)
        corners.append((CELL / 2 + x, CELL / 2 + y))
    draw.polygon(corners, fill=look["ink"])


def _target(draw: ImageDraw.ImageDraw, look: Look) -> None:
    _ring(draw, look["ink"])
    _disc(draw, look["ink"], 0.1)


def _disc_in_ring(draw: ImageDraw.ImageDraw, look: Look) -> None:
    _ring(draw, look["second"])
    _disc(draw, look["ink"], 0.22)


def _disc_in_hole(draw: ImageDraw.ImageDraw, look: Look) -> None:
    _disc(draw, look["second"], 0.38)
    _disc(draw, look["ink"], 0.22)


def _text(draw: ImageDraw.ImageDraw, look: Look) -> None:
    """The symbol itself, smaller if it is long."""
    symbol = look["symbol"]
    font = ImageFont.load_default(min(0.6, 1.5 / max(len(symbol), 1)) * CELL)
    draw.text((CELL / 2, CELL / 2), symbol, look["ink"], font, anchor="mm")


def _nothing(draw: ImageDraw.ImageDraw, look: Look) -> None:
    del draw, look


# Shape -> what draws it on the ground of its cell; a look also has its `symbol` there.
SHAPES: dict[str, Callable[[ImageDraw.ImageDraw, Look], None]] = {
    "none": _nothing,
    "text": _text,
    "bricks": _bricks,
    "box": _box,
    "star": _star,
    "ring": _target,
    "hole": lambda draw, look: _disc(draw, look["ink"], 0.38),
    "disc": lambda draw, look: _disc(draw, look["ink"], 0.3),
    "disc in ring": _disc_in_ring,
    "disc in hole": _disc_in_hole,
}
