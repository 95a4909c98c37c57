"""The vision tower of Qwen2.5-VL: pictures in, one embedding per 2x2 patches out.

In: pictures of one size, uint8. Out: float embeddings that stand in a dialogue where
its picture tokens are, and the rotary positions of tokens beside and inside pictures.

All pictures of a call have the same size, so that windows, positions and masks are
constants of the compiled program.

Source: Qwen2.5-VL, arXiv 2502.13923, section 2.1; names and constants as in
transformers 5, which the tests compare with.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, UInt8

from ragen_jax.models.attention import MASKED_SCORE, rope_frequencies, rotate
from ragen_jax.models.layers import MLP, Linear, RMSNorm
from ragen_jax.models.products import einsum_float32, einsum_narrow, product
from ragen_jax.models.vision_config import CHANNELS, PIXEL_MEAN, PIXEL_STD, VisionConfig

# Of the tower, whatever the text's are.
_NORM_EPS, _ROPE_THETA = 1e-6, 10_000.0


class Windows(NamedTuple):
    """Which patches attend to each other, `w` windows of at most `n` patches.

    Attributes:
      index: patches of each window; what is no patch repeats patch 0.
      is_patch: whether an entry is one.
      place: of each patch, its entry in the flattened windows.
    """

    index: Int[np.ndarray, "w n"]
    is_patch: Bool[np.ndarray, "w n"]
    place: Int[np.ndarray, " patches"]


@functools.cache
def find_windows(rows: int, cols: int, side: int, unit: int) -> Windows:
    """Windows over a grid of `rows` x `cols` embeddings of `unit` patches each.

    Args:
      rows, cols: of the picture, in embeddings.
      side: of a window, in embeddings; those at the right and below may be smaller.
      unit: patches of an embedding, which are adjacent.
    """
    grid = np.arange(rows * cols).reshape(rows, cols)
    windows = [
        grid[r : r + side, c : c + side].reshape(-1)
        for r in range(0, rows, side)
        for c in range(0, cols, side)
    ]
    size = max(map(len, windows)) * unit
    index = np.zeros((len(windows), size), np.int32)
    is_patch = np.zeros(index.shape, bool)
    for i, window in enumerate(windows):
        patches = (window[:, None] * unit + np.arange(unit)).reshape(-1)
        index[i, : patches.size], is_patch[i, : patches.size] = patches, True
    place = np.empty(rows * cols * unit, np.int32)
    place[index[is_patch]] = np.flatnonzero(is_patch)
    return Windows(index, is_patch, place)


class VisionAttention(nnx.Module):
    """Attention of patches within windows, with rotary rows and columns."""

    def __init__(self, config: VisionConfig, *, dtype, init_scale, rngs: nnx.Rngs):
        width = config.hidden_size
        shared = {"init_scale": init_scale, "dtype": dtype, "rngs": rngs}
        self.qkv = Linear(
            (width, 3 * width), ("embed", "heads"), use_bias=True, **shared
        )
        self.proj = Linear((width, width), ("heads", "embed"), use_bias=True, **shared)
        self.head_dim = config.head_dim

    def __call__(
        self, x: Float[Array, "N P D"], angles: tuple[Array, Array], windows: Windows
    ) -> Float[Array, "N P D"]:
        num_pictures, num_patches, width = x.shape
        heads = self.qkv(x).reshape(num_pictures, num_patches, 3, -1, self.head_dim)
        queries, keys, values = (heads[:, :, i] for i in range(3))
        queries, keys = rotate(queries, angles), rotate(keys, angles)
        queries, keys, values = (
            y[:, windows.index] for y in (queries, keys, values)
        )  # [N, w, n, H, F]
        scores = einsum_float32("zwqhf,zwkhf->zwhqk", queries, keys)
        is_seen = windows.is_patch[None, :, None, None]
        scores = jnp.where(is_seen, scores * self.head_dim**-0.5, MASKED_SCORE)
        weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
        mixed = einsum_narrow("zwhqk,zwkhf->zwqhf", weights, values)
        mixed = mixed.reshape(num_pictures, -1, width)[:, windows.place]
        return self.proj(mixed.astype(x.dtype))


class VisionLayer(nnx.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, config: VisionConfig, **how):
        self.norm1 = RMSNorm(config.hidden_size, _NORM_EPS)
        self.norm2 = RMSNorm(config.hidden_size, _NORM_EPS)
        self.attn = VisionAttention(config, **how)
        sizes = config.hidden_size, config.intermediate_size
        self.mlp = MLP(*sizes, use_bias=True, **how)

    def __call__(self, x, angles, windows: Windows):
        x = x + self.attn(self.norm1(x), angles, windows)
        return x + self.mlp(self.norm2(x))


class PatchEmbedding(nnx.Module):
    """A linear map of each patch; its kernel is a convolution's, as in checkpoints."""

    def __init__(self, config: VisionConfig, *, dtype, init_scale, rngs: nnx.Rngs):
        side = config.patch_size
        shape = (config.hidden_size, CHANNELS, config.temporal_patch_size, side, side)
        weight = init_scale * jax.random.normal(rngs.params(), shape)
        axes = ("embed", "norm", "norm", "norm", "norm")
        self.proj = nnx.Dict(weight=nnx.Param(weight, logical_axes=axes))
        self.dtype = dtype

    def __call__(self, patches: Float[Array, "N P n"]) -> Float[Array, "N P D"]:
        # All frames of a picture are equal: the sum of their weights sees them at once.
        weight = self.proj["weight"][...].sum(axis=2)
        kernel = weight.reshape(weight.shape[0], -1).T.astype(self.dtype)
        rows = patches.astype(self.dtype).reshape(-1, patches.shape[-1])
        return product(rows, kernel).reshape(*patches.shape[:2], -1)


class PatchMerger(nnx.Module):
    """Adjacent patches as one embedding: norm, then an MLP over all of them."""

    def __init__(self, config: VisionConfig, *, dtype, init_scale, rngs: nnx.Rngs):
        wide = config.hidden_size * config.spatial_merge_size**2
        shared = {
            "use_bias": True,
            "init_scale": init_scale,
            "dtype": dtype,
            "rngs": rngs,
        }
        self.ln_q = RMSNorm(config.hidden_size, _NORM_EPS)
        self.mlp = nnx.Dict(
            {
                "0": Linear((wide, wide), ("embed", "mlp"), **shared),
                "2": Linear((wide, config.out_hidden_size), ("mlp", "embed"), **shared),
            }
        )
        self.wide = wide

    def __call__(self, x: Float[Array, "N P D"]) -> Float[Array, "N n out"]:
        x = self.ln_q(x).reshape(x.shape[0], -1, self.wide)
        return self.mlp["2"](jax.nn.gelu(self.mlp["0"](x), approximate=False))


class VisionTower(nnx.Module):
    """The whole tower."""

    def __init__(self, config: VisionConfig, *, dtype, init_scale, rngs: nnx.Rngs):
        how = {"dtype": dtype, "init_scale": init_scale, "rngs": rngs}
        self.patch_embed = PatchEmbedding(config, **how)
        self.blocks = nnx.Dict(
            {str(i): VisionLayer(config, **how) for i in range(config.depth)}
        )
        self.merger = PatchMerger(config, **how)
        self.config = config

    def __call__(
        self, pictures: UInt8[Array, "N height width 3"]
    ) -> Float[Array, "N n out"]:
        """Embeddings of pictures, row by row; `n` is the product of `config.grid`.

        Raises:
          ValueError: a side is not a multiple of `config.cell`.
        """
        grid = self.config.grid(*pictures.shape[1:3])
        return self._read(self.patch_embed(_patches(pictures, self.config)), grid)

    def see_boards(
        self,
        boards: Int[Array, "N rows cols"],
        cells: UInt8[np.ndarray, "symbols cell cell 3"],
    ) -> Float[Array, "N n out"]:
        """Embeddings of the pictures of boards, whose cells are embeddings.

        What the pixels of a drawing become is computed once, not for every cell.

        Args:
          boards: ids of symbols.
          cells: their drawings, `config.cell` pixels along a side.
        """
        num_boards, *grid = boards.shape
        drawn = self.patch_embed(_patches(jnp.asarray(cells), self.config))
        return self._read(drawn[boards].reshape(num_boards, -1, drawn.shape[-1]), grid)

    def _read(
        self, x: Float[Array, "N P D"], grid: Sequence[int]
    ) -> Float[Array, "N n out"]:
        config, (rows, cols) = self.config, grid
        unit = config.spatial_merge_size**2
        whole = find_windows(rows, cols, max(rows, cols), unit)
        side = config.window_size // config.cell
        within = find_windows(rows, cols, side, unit)
        angles = _patch_angles(rows, cols, config)
        for i in range(config.depth):
            is_full = i in config.fullatt_block_indexes
            x = self.blocks[str(i)](x, angles, whole if is_full else within)
        return self.merger(x)


def _patches(
    pictures: UInt8[Array, "N height width 3"], config: VisionConfig
) -> Float[Array, "N P n"]:
    """Normalized pixels of each patch; the patches of an embedding are adjacent."""
    mean, std = (np.array(x, np.float32) for x in (PIXEL_MEAN, PIXEL_STD))
    mean, std = mean[None, None, None], std[None, None, None]
    pixels = (pictures.astype(jnp.float32) / 255 - mean) / std
    side, merge = config.patch_size, config.spatial_merge_size
    rows, cols = config.grid(*pictures.shape[1:3])
    shape = (-1, rows, merge, side, cols, merge, side, CHANNELS)
    cut = pixels.reshape(shape).transpose(0, 1, 4, 2, 5, 7, 3, 6)
    return cut.reshape(pictures.shape[0], rows * cols * merge**2, -1)


def _patch_angles(
    rows: int, cols: int, config: VisionConfig
) -> tuple[Float[np.ndarray, "1 P half"], Float[np.ndarray, "1 P half"]]:
    """Cosine and sine: half of a head's pairs turn by the row, half by the column."""
    merge, half = config.spatial_merge_size, config.head_dim // 2
    grid = np.indices((rows * merge, cols * merge))
    cut = grid.reshape(2, rows, merge, cols, merge).transpose(0, 1, 3, 2, 4)
    places = cut.reshape(2, -1).astype(np.float32)
    frequencies = rope_frequencies(half, _ROPE_THETA)
    angles = np.concatenate([place[:, None] * frequencies for place in places], axis=1)
    return np.cos(angles)[None], np.sin(angles)[None]


def picture_shift(
    is_picture: Bool[Array, "B Q"],
    earlier: Int[Array, "B Q"],
    grid: tuple[int, int],
) -> Int[Array, "3 B Q"]:
    """What pictures add to the rotary positions of tokens: time, row and column.

    A text token's three positions are equal and grow by 1. A picture's are those of its
    first token plus (0, row, column); what follows it goes on after its longer side.

    Args:
      is_picture: the token stands for a part of a picture. A picture has all of its
        tokens one after the other.
      earlier: tokens before it in its row that do.
      grid: rows and columns of a picture, in tokens.
    """
    rows, cols = grid
    size = rows * cols
    pictures, part = earlier // size, earlier % size
    part = jnp.where(is_picture, part, 0)
    back = part + pictures * (size - max(rows, cols))
    inside = jnp.stack([jnp.zeros_like(part), part // cols, part % cols])
    return inside - back[None]


def section_angles(
    positions: Int[Array, "3 B Q"],
    head_dim: int,
    theta: float,
    sections: tuple[int, int, int],
) -> tuple[Float[Array, "B Q half"], Float[Array, "B Q half"]]:
    """`attention.rope_angles` where pairs turn by time, row or column.

    Args:
      positions: time, row and column of each token, see `picture_shift`.
      head_dim, theta: see `rope_angles`.
      sections: pairs that turn by each of the three, in this order; their sum is half
        of `head_dim`.
    """
    frequencies = rope_frequencies(head_dim, theta)
    which = np.repeat(np.arange(3), sections)
    turning = jnp.moveaxis(positions.astype(jnp.float32)[which], 0, -1)
    angles = turning * frequencies[None, None]
    return jnp.cos(angles), jnp.sin(angles)
