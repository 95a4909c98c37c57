"""Boards as pictures, drawn with Pillow, and as coloured text.

In: the boards of an episode as `ragen_jax.rollout.records` records them. Out: one
picture, the boards side by side; or a board for a terminal. `envs.pictures` draws the
cells.
"""

import io
from collections.abc import Mapping, Sequence

from PIL import Image
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from envs.pictures import draw_cell, looks

# Pixels of a cell's side and between two boards.
CELL = 24
_GAP = 12
# Milliseconds that a board of an animation is shown.
_FRAME_MS, _LAST_FRAME_MS = 500, 2000

Board = Sequence[Sequence[str]]


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
    of_meaning, text = looks(), Text()
    cell = longest = max(cell_len(symbol) for row in board for symbol in row)
    if (cell + 1) * max(map(len, board)) <= width:
        cell += 1
    for row in board:
        for symbol in row:
            look = of_meaning.get(legend.get(symbol, ""), of_meaning[""])
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
            cell = draw_cell(legend.get(symbol, ""), symbol, CELL)
            picture.paste(Image.fromarray(cell), (c * CELL, r * CELL))
    return picture
