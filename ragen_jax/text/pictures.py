"""Boards that messages show as pictures.

In: a game whose text has a board. Out: the same game with a picture in its place, or
beside it. A picture is a token per cell, whose id names the symbol: a network that sees
draws it (`models.vision_decoder`), and everything else passes it on like any token.
"""

import collections
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from envs.base import TextGame
from envs.board_game import BoardGame
from envs.pictures import looks
from envs.templates import Grid, Part, Passage, Template
from ragen_jax.types import (
    HOST_PICTURE_IDS,
    IDS_PER_HOST_GAME,
    IDS_PER_PICTURE,
    PICTURE_IDS,
    ROW_END,
)

# Around a picture, as in Qwen2.5-VL's chats.
BEGIN, END = "<|vision_start|>", "<|vision_end|>"
# Stands in texts for a token of an image.
IMAGE_SIGN = "▦"


@dataclasses.dataclass(frozen=True)
class Picture(Grid):
    """A board shown as a picture; as text it is the board.

    Attributes:
      kind: number of the game among those of a policy, from 0.
    """

    kind: int = 0

    def __post_init__(self):
        super().__post_init__()
        if len(self.symbols) > ROW_END:
            raise ValueError(
                f"the board {self.name!r} has {len(self.symbols)} symbols; a picture "
                f"can show {ROW_END}"
            )

    @property
    def first_id(self) -> int:
        """Id of its first symbol; those of cells that end a row follow `ROW_END` on."""
        return PICTURE_IDS + self.kind * IDS_PER_PICTURE

    @property
    def row_ends(self) -> np.ndarray:
        """What is added to the ids of the cells, `int32[1, cols]`."""
        is_last = np.arange(self.cols) == self.cols - 1
        return (ROW_END * is_last).astype(np.int32)[None]

    def texts_of_ids(self) -> dict[int, str]:
        """The text of every id: what stands for its cell in the board's text."""
        inside = (symbol + self.separator for symbol in self.symbols)
        at_end = (symbol + "\n" for symbol in self.symbols)
        return dict(enumerate(inside, self.first_id)) | dict(
            enumerate(at_end, self.first_id + ROW_END)
        )


@dataclasses.dataclass(frozen=True)
class HostPicture:
    """An image that a game in Python shows after its text.

    Attributes:
      kind: see `Picture`.
      rows, cols: of its tokens.
    """

    kind: int
    rows: int
    cols: int

    @property
    def size(self) -> int:
        """Tokens of an image."""
        return self.rows * self.cols

    def ids(self, number: int) -> list[int]:
        """Ids of image `number` of a rollout."""
        first = HOST_PICTURE_IDS + self.kind * IDS_PER_HOST_GAME + number * self.size
        return list(range(first, first + self.size))

    def texts_of_ids(self) -> Mapping[int, str]:
        """The text of every id: the same sign, which says no more than that it is one.

        In: ids that stand for parts of images.
        """
        return collections.defaultdict(lambda: IMAGE_SIGN, {self.ids(0)[0]: IMAGE_SIGN})


class NoBoard(ValueError):
    """A game has no board that a picture could show."""


def show_boards(env: TextGame, observation: str, kind: int | None) -> TextGame:
    """The game with its boards shown as `observation` says.

    Args:
      env: the game.
      observation: entry of `OBSERVATIONS`.
      kind: see `Picture`; None: the pictures are sent beside the text.

    Raises:
      NoBoard: the text of the game has no board.
      ValueError: an unknown observation.
    """
    if observation not in OBSERVATIONS:
        raise ValueError(
            f"prompt.observation={observation!r} is unknown; choose one of "
            f"{', '.join(OBSERVATIONS)}"
        )
    show = OBSERVATIONS[observation]
    if show is None:
        return env
    if picture_of(env.template) is None:
        raise NoBoard(
            f"prompt.observation={observation!r}, but {_why_no_board(env)}; set "
            "prompt.observation='text'"
        )
    shown = copy.copy(env)
    parts = (part for old in env.template.parts for part in show(old, kind))
    shown.template = Template(tuple(parts))
    shown.instruction = _INSTRUCTIONS[observation](env)
    return shown


def _why_no_board(env: TextGame) -> str:
    if any(isinstance(part, Passage) for part in env.template.parts):
        return (
            f"{env.name} is a game in Python, which writes its own text and whose "
            "images host.image_grid shows"
        )
    if isinstance(env, BoardGame):
        listed = f"env.kwargs.observation={env.observation!r} lists the coordinates"
        return f"{listed} of {env.name}, where 'grid' shows its board"
    return f"the text of {env.name} has no board that a picture could show"


def picture_of(template: Template, kind: type[Grid] = Grid) -> Grid | None:
    """The first board of a template, or the first of a kind; None without one."""
    return next((part for part in template.parts if isinstance(part, kind)), None)


def _image(part: Part, kind: int | None) -> Iterator[Part]:
    if not isinstance(part, Grid):
        yield part
        return
    if kind is None:
        yield "(see the picture)\n"
        return
    fields = {f.name: getattr(part, f.name) for f in dataclasses.fields(Grid)}
    yield from (BEGIN, Picture(**fields, kind=kind), f"{END}\n")


def _both(part: Part, kind: int | None) -> Iterator[Part]:
    yield part
    if isinstance(part, Grid) and kind is not None:
        yield from _image(part, kind)


def _with_drawings(env: TextGame) -> str:
    """The instruction with what drawings mean in place of what symbols mean."""
    rules, _, symbols = env.instruction.rpartition("\n")
    if not symbols.startswith("Symbols: "):
        rules = env.instruction
    looked_up = ((looks().get(x), x) for x in picture_of(env.template).meanings)
    shapes = ((look["shape"], x) for look, x in looked_up if look is not None)
    named = [f"{_SHAPES.get(s, s)}: {x}" for s, x in shapes if s != "text"]
    # Of a board of numbers the empty cell alone would be left.
    drawings = f" Drawings: {', '.join(named)}." if named[1:] else ""
    return f"{rules}\nThe board is a picture.{drawings}"


# Words for drawings that have no shape of their own.
_SHAPES = {"none": "nothing"}
# Name -> what stands in a message in place of a part; None: the part.
OBSERVATIONS: dict[str, Callable[[Part, int | None], Iterator[Part]] | None] = {
    "text": None,
    "image": _image,
    "both": _both,
}
_INSTRUCTIONS: dict[str, Callable[[TextGame], str]] = {
    "image": _with_drawings,
    "both": lambda env: f"{env.instruction}\nThe picture shows the board, too.",
}
