"""Games on a board of symbols: their text, and the facts a thought can state of them.

In: the rules, the symbols and the marked cells of a game. Out: its instruction, its
template and the places of its landmarks. Knows no dynamics.
"""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
from gymnax.environments import spaces
from jax import lax
from jaxtyping import Array, Int

from envs.base import EnvParams, EnvState, StateFacts, TextEnvironment
from envs.templates import Cells, Choice, Grid, Template

OBSERVATIONS = ("grid", "coord", "grid_coord", "relative")


class BoardGame(TextEnvironment):
    """A game whose observation is a board of symbol ids, `Int[rows, cols]`.

    Attributes set by subclasses:
      rules: first line of the instruction.
      meanings: a name for each symbol.
    """

    rules: str
    meanings: tuple[str, ...]

    def __init__(
        self,
        *,
        rows: int,
        cols: int,
        observation: str,
        symbols: tuple[str, ...],
        marks: Mapping[str, tuple[str, int]],
        player_marks: Sequence[str] = (),
        border: int | None = None,
    ):
        """Builds instruction and template.

        Args:
          rows, cols: size of the board.
          observation: one of `OBSERVATIONS`.
          symbols: one character per entry of `meanings`.
          marks: fields that list cells by their coordinates: name -> (label, most
            cells).
          player_marks: those of the player, from whom "relative" counts the others.
          border: the symbol that always fills the outermost ring, if there is one.

        Raises:
          ValueError: an unknown observation, or symbols that cannot be distinguished.
        """
        symbols = tuple(symbols)
        _check_text(observation, symbols, self.meanings)
        self.observation = observation
        self.symbols = symbols
        self._board_shape = (rows, cols)
        self.instruction = self._instruction()
        picture = Grid("board", symbols, rows, cols, border, self.meanings)
        self._picture = picture
        self._player_marks = tuple(player_marks)

        def cells(name: str, label: str, most: int) -> Cells:
            if observation != "relative" or name in player_marks:
                return Cells(name, label, rows, cols, most)
            around = 2 * rows - 1, 2 * cols - 1
            return Cells(name, label, *around, most, is_relative=True)

        coordinates = (
            f"Board: {rows} rows and {cols} columns, counted from 0.\n",
            *(cells(name, *mark) for name, mark in marks.items()),
        )
        parts = {
            "grid": (picture,),
            "grid_coord": ("Coordinates:\n", *coordinates, "Map:\n", picture),
        }
        self.template = Template(parts.get(observation, coordinates))

    def observation_space(self, params: EnvParams) -> spaces.Box:
        """Boards of symbol ids."""
        return spaces.Box(0, len(self.symbols) - 1, self._board_shape, jnp.int32)

    @property
    def picture(self) -> Grid:
        """The board, also where the text lists coordinates."""
        return self._picture

    def board(self, state: EnvState, params: EnvParams) -> Int[Array, "rows cols"]:
        """The observation."""
        return self.observe(None, state, None, params)

    def fields_of(
        self, board: Int[Array, "rows cols"], marks: Mapping[str, Array]
    ) -> dict[str, Int[Array, "..."]]:
        """Fields of the template.

        Args:
          board: symbol ids, for the picture.
          marks: name -> where its cells are, `Bool[rows, cols]`.
        """
        fields = {name: mark.astype(jnp.int32) for name, mark in marks.items()}
        if self.observation == "relative":
            (rows, cols), zero = board.shape, jnp.int32(0)
            player = jnp.argmax(sum(fields[name] for name in self._player_marks))
            corner = rows - 1 - player // cols, cols - 1 - player % cols
            around = jnp.full((2 * rows - 1, 2 * cols - 1), zero)
            for name in fields.keys() - set(self._player_marks):
                fields[name] = lax.dynamic_update_slice(around, fields[name], corner)
        fields["board"] = board
        return {name: fields[name] for name in self.template.fields}

    def facts(self) -> StateFacts:
        """Symbol, row and column of each landmark; a shallow thought keeps the last.

        Of several places it is the first in reading order.

        Raises:
          ValueError: the text shows no picture.
        """
        if self.observation != "grid":
            raise ValueError(
                f"demonstrators of {type(self).__name__} think about its picture; use "
                "observation='grid', or set thoughts to 'none'"
            )
        rows, cols = (("", *map(str, range(size))) for size in self._board_shape)
        words: list[Choice] = []
        for i, landmark in enumerate(self.landmarks):
            words.append(Choice(f"landmark_{i}", ("", self.symbols[landmark.symbol])))
            words += [Choice(f"row_{i}", rows), Choice(f"col_{i}", cols)]
        is_shallow = (False,) * (len(words) - 3) + (True,) * 3
        statements = (3,) * len(self.landmarks)
        return StateFacts(tuple(words), statements, is_shallow, self._landmark_words)

    def _landmark_words(self, state: EnvState, params: EnvParams) -> Int[Array, " W"]:
        cells = self.observe(None, state, None, params).reshape(-1)
        num_cols = self._board_shape[1]
        values = []
        for landmark in self.landmarks:
            shown_as = jnp.array(landmark.shown_as, cells.dtype)
            is_there = jnp.any(cells[:, None] == shown_as[None, :], axis=1)
            cell = jnp.argmax(is_there)
            values += [1, 1 + cell // num_cols, 1 + cell % num_cols]
        return jnp.stack([jnp.asarray(v, jnp.int32) for v in values])

    def _instruction(self) -> str:
        lines = [self.rules]
        if self.observation in ("grid", "grid_coord"):
            pairs = zip(self.symbols, self.meanings, strict=True)
            legend = ", ".join(f"{symbol} {meaning}" for symbol, meaning in pairs)
            lines.append(f"Symbols: {legend}.")
        if self.observation != "grid":
            lines.append(
                "Coordinates are (row, column), counted from the top left corner."
            )
        if self.observation == "relative":
            lines.append("Other places are given in steps from where you are.")
        return "\n".join(lines)


def _check_text(
    observation: str, symbols: tuple[str, ...], meanings: tuple[str, ...]
) -> None:
    if observation not in OBSERVATIONS:
        raise ValueError(
            f"observation={observation!r} is unknown; "
            f"choose one of {', '.join(OBSERVATIONS)}"
        )
    if len(symbols) != len(meanings) or len(set(symbols)) < len(symbols):
        raise ValueError(
            f"symbols={symbols!r} must be {len(meanings)} different characters, for "
            f"{', '.join(meanings)}"
        )
    if not all(len(s) == 1 and not s.isspace() for s in symbols):
        raise ValueError(
            f"symbols={symbols!r} must be one visible character each: the picture has "
            "one character per cell"
        )
