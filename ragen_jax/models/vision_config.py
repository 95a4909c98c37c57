"""Description of a vision tower: `vision_config` of a checkpoint's `config.json`.

In: a parsed file. Out: sizes, or what is wrong with them. The tower itself is imported
only by networks that have one.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import UInt8

# Of a picture: red, green and blue.
CHANNELS = 3
# Of the pixels of CLIP's training pictures, per channel (arXiv 2103.00020).
PIXEL_MEAN = (0.48145466, 0.4578275, 0.40821073)
PIXEL_STD = (0.26862954, 0.26130258, 0.27577711)
# Embeddings of the smallest and of the largest picture that transformers leaves as it
# is, as Qwen2.5-VL has them.
_FEWEST_EMBEDDINGS, _MOST_EMBEDDINGS = 4, 16_384


@dataclasses.dataclass(frozen=True, eq=False)
class BoardPictures:
    """Pictures of the boards of a game, whose cells are tokens of their own.

    The token of a cell names its symbol (`types.PICTURE_IDS`), so that a row of tokens
    holds all that its pictures show.

    Attributes:
      kind: number of the game among those that show pictures, from 0.
      cells: drawing of each symbol, `VisionConfig.cell` pixels along a side.
      grid: rows and columns of the board.
      most: pictures of a row of tokens.
    """

    kind: int
    cells: UInt8[np.ndarray, "symbols cell cell 3"]
    grid: tuple[int, int]
    most: int


@dataclasses.dataclass(frozen=True)
class HostImages:
    """Images that a game in Python shows, whose parts are tokens of their own.

    The token of a part names its place among the images of a rollout
    (`types.HOST_PICTURE_IDS`), which a network is given beside its tokens.

    Attributes:
      kind: number of the game among those that show pictures, from 0.
      grid: rows and columns of tokens; an image has `VisionConfig.cell` pixels for
        each.
      most: images of a row of tokens.
    """

    kind: int
    grid: tuple[int, int]
    most: int


# What the tokens of a task may show to a network.
ShownPictures = BoardPictures | HostImages


@dataclasses.dataclass(frozen=True)
class VisionConfig:
    """Sizes of a tower; names are those of `vision_config` in `config.json`.

    Attributes:
      depth: layers.
      hidden_size: width; a multiple of 4 `num_heads`.
      intermediate_size: width of the gated MLP.
      num_heads: attention heads.
      out_hidden_size: width of the embeddings: the text's.
      patch_size: pixels along a side of a patch.
      spatial_merge_size: patches along a side that become one embedding.
      temporal_patch_size: frames of a patch; a picture is shown as so many.
      window_size: pixels along a side of the windows that most layers attend within.
      fullatt_block_indexes: layers that attend to the whole picture.
      tokens_per_second: of films; kept for export only.
    """

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    out_hidden_size: int
    patch_size: int = 14
    spatial_merge_size: int = 2
    temporal_patch_size: int = 2
    window_size: int = 112
    fullatt_block_indexes: tuple[int, ...] = (7, 15, 23, 31)
    tokens_per_second: int = 2

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            numbers = value if isinstance(value, tuple) else (value,)
            least = 0 if isinstance(value, tuple) else 1
            if not all(type(x) is int and x >= least for x in numbers):
                raise ValueError(
                    f"vision_config has {name} = {value!r}; it must be a whole number "
                    f"of at least {least}, or a list of them for fullatt_block_indexes"
                )
        if self.hidden_size % (4 * self.num_heads):
            raise ValueError(
                f"vision_config has hidden_size = {self.hidden_size}, which must be a "
                f"multiple of 4 x num_heads = {4 * self.num_heads}: a head turns pairs "
                "by row and by column"
            )
        if self.window_size % self.cell:
            raise ValueError(
                f"vision_config has window_size = {self.window_size}, which must be a "
                f"multiple of {self.cell}, the side of an embedding's patches"
            )

    @property
    def cell(self) -> int:
        """Pixels along a side of what becomes one embedding."""
        return self.patch_size * self.spatial_merge_size

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Embeddings along the sides of a picture.

        Raises:
          ValueError: the sides are not multiples of `cell`.
        """
        if height % self.cell or width % self.cell or not height * width:
            raise ValueError(
                f"a picture of {height} x {width} pixels; both have to be multiples of "
                f"{self.cell}, which one embedding covers"
            )
        return height // self.cell, width // self.cell

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> "VisionConfig":
        """Config of `vision_config` in `config.json`.

        Raises:
          ValueError: a size is absent or impossible, or not implemented here.
        """
        for name, only in _CONSTANTS.items():
            if hf.get(name, only) != only:
                raise ValueError(
                    f"vision_config has {name} = {hf[name]!r}; only {only!r} is "
                    "implemented"
                )
        fields = {field.name: field for field in dataclasses.fields(cls)}
        missing = [
            name
            for name, field in fields.items()
            if field.default is dataclasses.MISSING and name not in hf
        ]
        if missing:
            raise ValueError(f"vision_config lacks {', '.join(missing)}")
        given = {name: hf[name] for name in fields if name in hf}
        if isinstance(full := given.get("fullatt_block_indexes"), list):
            given["fullatt_block_indexes"] = tuple(full)
        return cls(**given)

    def to_hf(self) -> dict[str, Any]:
        """`vision_config` of `config.json`."""
        fields = dataclasses.asdict(self)
        fields["fullatt_block_indexes"] = list(self.fullatt_block_indexes)
        # transformers 4 reads the patches' channels from another key than 5.
        return {
            "model_type": "qwen2_5_vl",
            "in_chans": CHANNELS,
            **_CONSTANTS,
        } | fields

    def to_preprocessor(self) -> dict[str, Any]:
        """`preprocessor_config.json`: how transformers turns pictures into patches."""
        area = self.cell**2
        return {
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen2_5_VLProcessor",
            "patch_size": self.patch_size,
            "merge_size": self.spatial_merge_size,
            "temporal_patch_size": self.temporal_patch_size,
            "min_pixels": _FEWEST_EMBEDDINGS * area,
            "max_pixels": _MOST_EMBEDDINGS * area,
            "image_mean": list(PIXEL_MEAN),
            "image_std": list(PIXEL_STD),
        }


# Values of keys that other towers have otherwise.
_CONSTANTS = {"hidden_act": "silu", "in_channels": CHANNELS}
