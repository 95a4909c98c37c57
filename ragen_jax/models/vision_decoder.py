"""The decoder of Qwen2.5-VL: Qwen-2.5's, with pictures among its tokens.

In: tokens, some of which stand for parts of pictures. Out: as of `Decoder`. Without
pictures it computes what Qwen-2.5 does.

Pictures come in one of three ways. Those of boards are in the tokens themselves, whose
ids name the cells (`BoardPictures`); the network needs nothing else. Those of games in
Python are in `types.Images` beside the tokens, whose ids name the places there
(`HostImages`). Any other picture is `n` tokens `image_token_id` and a `Sight`.
"""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx, struct
from jaxtyping import Array, Bool, Float, Int, UInt8

from ragen_jax.models.decoder import Decoder
from ragen_jax.models.kv_cache import KVCache, PromptRows, SharedCache
from ragen_jax.models.vision import VisionTower, picture_shift, section_angles
from ragen_jax.models.vision_config import BoardPictures, HostImages, ShownPictures
from ragen_jax.types import (
    HOST_PICTURE_IDS,
    IDS_PER_HOST_GAME,
    IDS_PER_PICTURE,
    PICTURE_IDS,
    ROW_END,
    Images,
)

AnyCache = KVCache | SharedCache | PromptRows | None
# Which tokens of a call are parts of pictures, and rows and columns of such a picture.
Shown = tuple[Bool[Array, "B Q"], tuple[int, int]]


@struct.dataclass
class Sight:
    """What the picture tokens of a call stand for.

    Attributes:
      embeddings: at each picture token its own, of `see` and `spread`, or of `look`;
        anything elsewhere. None: the call has no picture tokens.
      grid: rows and columns of a picture, in tokens; None: the pictures that the ids
        name.
    """

    embeddings: Float[Array, "B Q D"] | None
    grid: tuple[int, int] | None = struct.field(pytree_node=False, default=None)


def spread(
    seen: Float[Array, "B K n D"], is_picture: Bool[Array, "B Q"]
) -> Float[Array, "B Q D"]:
    """The embeddings of each row's pictures, in turn, at its picture tokens."""
    num_rows, _, _, width = seen.shape
    parts = seen.reshape(num_rows, -1, width)
    which = jnp.cumsum(is_picture.astype(jnp.int32), axis=1) - 1
    which = jnp.clip(which, 0, parts.shape[1] - 1)
    return jnp.take_along_axis(parts, which[..., None], axis=1)


class VisionDecoder(Decoder):
    """The whole network, with its tower."""

    def __init__(
        self,
        config,
        *,
        dtype,
        remat,
        attention,
        pictures: Sequence[ShownPictures] = (),
        freeze_tower: bool = False,
        rngs: nnx.Rngs,
    ):
        super().__init__(
            config, dtype=dtype, remat=remat, attention=attention, rngs=rngs
        )
        self.visual = VisionTower(
            config.vision, dtype=dtype, init_scale=config.initializer_range, rngs=rngs
        )
        self.pictures = nnx.static(tuple(pictures))
        self.freeze_tower = freeze_tower

    def __call__(
        self, tokens, positions, cache: AnyCache, sight: Sight | Images | None = None
    ):
        hidden, after = super().__call__(tokens, positions, cache, sight)
        if isinstance(cache, KVCache):
            kinds = self._kinds(tokens, sight)
            write = jax.vmap(jax.lax.dynamic_update_slice_in_dim, (0, 0, 0, None))
            pictured = write(cache.pictured, kinds, positions[:, 0], 0)
            after = after.replace(pictured=pictured)
        return hidden, after

    def see(self, pictures: UInt8[Array, "N height width 3"]) -> Float[Array, "N n D"]:
        """Embeddings of pictures of one size.

        Raises:
          ValueError: see `VisionTower`.
        """
        return self._of_tower(self.visual(pictures))

    def look(self, tokens: Int[Array, "B Q"], images: Images | None = None) -> Sight:
        """The pictures that tokens name, of a network that is shown any.

        Calls that read the tokens piece by piece take pieces of it.

        Args:
          images: those of games in Python.
        """
        shape = (*tokens.shape, self.config.hidden_size)
        x = jnp.zeros(shape, self.dtype)
        for pictures, (is_part, _) in zip(
            self.pictures, self._shown(tokens, None), strict=True
        ):
            seen = self._look_at(tokens, pictures, is_part, images)
            if seen is not None:
                parts = spread(seen, is_part).astype(self.dtype)
                x = jnp.where(is_part[..., None], parts, x)
        return Sight(x)

    def _of_tower(self, seen: Array) -> Array:
        return jax.lax.stop_gradient(seen) if self.freeze_tower else seen

    def _look_at(
        self,
        tokens: Int[Array, "B Q"],
        pictures: ShownPictures,
        is_part: Bool[Array, "B Q"],
        images: Images | None,
    ) -> Float[Array, "B K n D"] | None:
        size = math.prod(pictures.grid)
        most = min(pictures.most, tokens.shape[1] // size)
        if not most:
            return None
        # Of each picture its first token: a picture has all of its own in a row.
        ends = jnp.cumsum(is_part.astype(jnp.int32), axis=1)[:, None]
        numbers = jnp.arange(most, dtype=jnp.int32)[None, :, None]
        starts = jnp.sum(ends < numbers * size + 1, axis=2, dtype=jnp.int32)
        places = starts[:, :, None] + jnp.arange(size, dtype=jnp.int32)[None, None]
        flat = jnp.minimum(places.reshape(len(tokens), -1), tokens.shape[1] - 1)
        ids = jnp.take_along_axis(tokens, flat, axis=1)
        # What is no picture shows the first symbol or image, and is not used.
        is_shown = jnp.take_along_axis(is_part, flat, axis=1)
        see = self._see_boards
        if isinstance(pictures, HostImages):
            see = functools.partial(self._see_images, images)
        seen = self._of_tower(see(pictures, ids, is_shown))
        return seen.reshape(len(tokens), most, size, -1)

    def _see_boards(
        self,
        pictures: BoardPictures,
        ids: Int[Array, "B Kn"],
        is_shown: Bool[Array, "B Kn"],
    ) -> Float[Array, "BK n D"]:
        boards = jnp.where(is_shown, ids % ROW_END, 0).reshape(-1, *pictures.grid)
        return self.visual.see_boards(boards, pictures.cells)

    def _see_images(
        self,
        images: Images | None,
        pictures: HostImages,
        ids: Int[Array, "B Kn"],
        is_shown: Bool[Array, "B Kn"],
    ) -> Float[Array, "BK n D"]:
        if images is None:
            raise ValueError(
                "tokens may name images of a game in Python, and none came with them; "
                "call Policy.shown first"
            )
        size = math.prod(pictures.grid)
        numbers = (ids - _ids_of(pictures)[0]) // size
        first = jnp.where(is_shown, numbers, 0).reshape(-1, size)[:, 0]
        return self.visual(images[pictures.kind][first])

    def _embed(self, tokens, positions, cache: AnyCache, sight: Sight | Images | None):
        x, angles = super()._embed(tokens, positions, cache, None)
        shown = self._shown(tokens, sight)
        if not shown:
            return x, angles
        if not isinstance(sight, Sight):
            sight = self._look_in_parts(tokens, cache, sight)
        is_picture = _any(is_part for is_part, _ in shown)
        if sight.embeddings is not None:
            parts = sight.embeddings.astype(x.dtype)
            x = jnp.where(is_picture[..., None], parts, x)
        places = positions[None]
        for kind, (is_part, grid) in enumerate(shown, start=1):
            earlier = _count_earlier(is_part, kind, positions, cache)
            places += picture_shift(is_part, earlier, grid)
        config, sections = self.config, self.config.mrope_section
        angles = section_angles(places, config.head_dim, config.rope_theta, sections)
        return x, angles

    def _look_in_parts(self, tokens, cache: AnyCache, images: Images | None) -> Sight:
        if not isinstance(cache, PromptRows):
            return self.look(tokens, images)
        # A row of a line begins with text, whatever the row before it ends with.
        parts = [self.look(part, images).embeddings for part in cache.split(tokens)]
        return Sight(cache.join(*parts))

    def _shown(self, tokens, sight: Sight | Images | None) -> list[Shown]:
        """Which tokens are parts of pictures, of each kind."""
        if isinstance(sight, Sight) and sight.grid is not None:
            return [(tokens == self.config.image_token_id, sight.grid)]
        shown = []
        for pictures in self.pictures:
            first, end = _ids_of(pictures)
            shown.append(((first <= tokens) & (tokens < end), pictures.grid))
        return shown

    def _kinds(self, tokens, sight: Sight | Images | None) -> Int[Array, "B Q"]:
        kinds = jnp.zeros(tokens.shape, jnp.int8)
        for kind, (is_part, _) in enumerate(self._shown(tokens, sight), start=1):
            kinds = jnp.where(is_part, jnp.int8(kind), kinds)
        return kinds


def _ids_of(pictures: ShownPictures) -> tuple[int, int]:
    """The first of their ids, and the one after the last."""
    first, count = PICTURE_IDS, IDS_PER_PICTURE
    if isinstance(pictures, HostImages):
        first, count = HOST_PICTURE_IDS, IDS_PER_HOST_GAME
    first += pictures.kind * count
    return first, first + count


def _count_earlier(
    is_part: Bool[Array, "B Q"], kind: int, positions, cache: AnyCache
) -> Int[Array, "B Q"]:
    """Tokens of each row before each of a call's that are parts of such pictures."""
    if isinstance(cache, PromptRows):
        of_prompts, of_rows = cache.split(is_part)
        counts = jnp.arange(of_prompts.shape[1])[None] < cache.lengths[:, None]
        before = jnp.sum(of_prompts & counts, axis=1, dtype=jnp.int32)
        before = jnp.repeat(before, cache.num_rows)[:, None]
        return cache.join(_before(of_prompts), before + _before(of_rows))
    earlier = _before(is_part)
    if cache is None:
        return earlier
    if isinstance(cache, SharedCache):
        filled, lengths = cache.cache.pictured, cache.lengths
    else:
        filled, lengths = cache.pictured, positions[:, 0]
    slots = jnp.arange(filled.shape[1], dtype=jnp.int32)[None]
    is_earlier = (filled == kind) & (slots < lengths[:, None])
    before = jnp.sum(is_earlier, axis=1, dtype=jnp.int32)
    return jnp.repeat(before, len(is_part) // len(before))[:, None] + earlier


def _before(is_part: Bool[Array, "B Q"]) -> Int[Array, "B Q"]:
    counts = is_part.astype(jnp.int32)
    return jnp.cumsum(counts, axis=1) - counts


def _any(masks) -> Bool[Array, "B Q"]:
    return functools.reduce(jnp.logical_or, masks)
