"""Boards as pictures: rows of symbols to pixels, pixels to a PNG file.

In: the boards of an episode as `ragen_jax.rollout.records` records them. Out: one
picture, the boards side by side. What the symbols' meanings look like stands in
`ragen_jax/report/static/cells.json`, which the report reads too.
"""

import functools
import importlib.resources
import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, UInt8

# Pixels of a cell's side and between two boards.
CELL = 24
_GAP = 12
_BACKGROUND = (255, 255, 255)
_LINE = 0.04  # half the width of a drawn line, in cells

Board = Sequence[Sequence[str]]
Mask = Bool[np.ndarray, "CELL CELL"]


def draw_boards(
    boards: Sequence[Board], legend: Mapping[str, str]
) -> UInt8[np.ndarray, "height width 3"]:
    """RGB pixels of boards from left to right.

    Args:
      boards: rows of symbols each; at least one.
      legend: what each symbol means; symbols without a known meaning get a shade of
        their own.
    """
    drawn = [_draw_board(board, legend) for board in boards]
    height = max(picture.shape[0] for picture in drawn)
    width = sum(picture.shape[1] for picture in drawn) + _GAP * (len(drawn) - 1)
    pixels = np.full((height, width, 3), _BACKGROUND, np.uint8)
    left = 0
    for picture in drawn:
        pixels[: picture.shape[0], left : left + picture.shape[1]] = picture
        left += picture.shape[1] + _GAP
    return pixels


def png(pixels: UInt8[np.ndarray, "height width 3"]) -> bytes:
    """An RGB picture as a PNG file (W3C's specification, no filter)."""
    height, width, _ = pixels.shape
    # Eight bits a channel, RGB, the usual compression and no interlacing.
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    lines = np.zeros((height, 1 + 3 * width), np.uint8)
    lines[:, 1:] = pixels.reshape(height, -1)
    data = zlib.compress(lines.tobytes(), 6)
    chunks = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)


def _draw_board(board: Board, legend: Mapping[str, str]) -> np.ndarray:
    rows = [
        np.concatenate([_draw_cell(legend.get(s, ""), s) for s in row], axis=1)
        for row in board
    ]
    return np.concatenate(rows)


@functools.cache
def _draw_cell(meaning: str, symbol: str) -> np.ndarray:
    looks = _looks()
    look = looks.get(meaning, looks[""])
    pixels = np.empty((CELL, CELL, 3), np.uint8)
    pixels[:] = _rgb(look["ground"])
    if look["shape"] == "text":  # no font here: a shade says which is which
        pixels[:] = pixels // 2 + np.uint8(zlib.crc32(symbol.encode()) % 100)
    for mask, paint in SHAPES[look["shape"]](look):
        pixels[mask] = _rgb(paint)
    pixels[-1:] = pixels[:, -1:] = _rgb(look["ground"]) // 8 * 7
    return pixels


@functools.cache
def _looks() -> dict[str, dict[str, str]]:
    static = importlib.resources.files("ragen_jax.report") / "static"
    return json.loads((static / "cells.json").read_text(encoding="utf-8"))


def _rgb(color: str) -> np.ndarray:
    return np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)], np.uint8)


# Offsets from the cell's middle, in cells: -0.5 to 0.5.
_Y, _X = (np.mgrid[:CELL, :CELL] + 0.5) / CELL - 0.5


def _disc(radius: float) -> Mask:
    return np.hypot(_X, _Y) <= radius


def _ring() -> Mask:
    return np.abs(np.hypot(_X, _Y) - 0.33) <= 0.06


def _bricks(look):
    joints = np.abs(_Y + 1 / 6) <= _LINE
    joints |= np.abs(_Y - 1 / 6) <= _LINE
    joints |= (np.abs(_X) <= _LINE) & (np.abs(_Y) > 1 / 6)
    joints |= (np.abs(np.abs(_X) - 0.3) <= _LINE) & (np.abs(_Y) <= 1 / 6)
    return [(joints, look["ink"])]


def _box(look):
    square = np.maximum(np.abs(_X), np.abs(_Y)) <= 0.36
    cross = (np.abs(np.abs(_X) - np.abs(_Y)) <= 0.06) & (np.abs(_X) <= 0.22)
    return [(square, look["ink"]), (cross, "#ffffff")]


def _star(look):
    angle = np.arctan2(_X, -_Y) % (2 * np.pi / 5) - np.pi / 5
    # The straight side between an outer and an inner corner, in polar coordinates.
    outer, inner, half = 0.42, 0.18, np.pi / 5
    away = half - np.abs(angle)
    side = outer * inner * np.sin(half)
    side /= inner * np.sin(half - away) + outer * np.sin(away)
    return [(np.hypot(_X, _Y) <= side, look["ink"])]


# Shape -> its look to (mask, colour) in the order they are painted.
SHAPES: dict[str, Callable] = {
    "none": lambda look: [],
    "text": lambda look: [],
    "bricks": _bricks,
    "box": _box,
    "star": _star,
    "ring": lambda look: [(_ring() | _disc(0.1), look["ink"])],
    "hole": lambda look: [(_disc(0.38), look["ink"])],
    "disc": lambda look: [(_disc(0.3), look["ink"])],
    "disc in ring": lambda look: [
        (_ring(), look["second"]),
        (_disc(0.22), look["ink"]),
    ],
    "disc in hole": lambda look: [
        (_disc(0.38), look["second"]),
        (_disc(0.22), look["ink"]),
    ],
}
