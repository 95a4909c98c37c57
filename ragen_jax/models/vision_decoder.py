"""The decoder of Qwen2.5-VL: Qwen-2.5's, with pictures among its tokens.

In: tokens, some of which stand for parts of pictures, and the pictures' embeddings.
Out: as of `Decoder`. Without pictures it computes what Qwen-2.5 does.

A picture is `n` picture tokens one after the other, one for each embedding of the
tower. All pictures of a call have one size.
"""

import jax.numpy as jnp
from flax import nnx, struct
from jaxtyping import Array, Float, Int, UInt8

from ragen_jax.models.decoder import Decoder
from ragen_jax.models.vision import VisionTower, picture_positions, section_angles


@struct.dataclass
class Sight:
    """Pictures of the tokens of a call.

    Attributes:
      embeddings: of `VisionDecoder.see`, of the pictures that the row's picture tokens
        in this call belong to, in their order: a picture that an earlier call began is
        the first. K may be 0; what a row does not use is not read.
      num_before: picture tokens of each row before this call.
      grid: rows and columns of a picture, in tokens: `n` is their product.
    """

    embeddings: Float[Array, "B K n D"]
    num_before: Int[Array, " B"]
    grid: tuple[int, int] = struct.field(pytree_node=False)


class VisionDecoder(Decoder):
    """The whole network, with its tower."""

    def __init__(self, config, *, dtype, remat, attention, rngs: nnx.Rngs):
        super().__init__(
            config, dtype=dtype, remat=remat, attention=attention, rngs=rngs
        )
        self.visual = VisionTower(
            config.vision, dtype=dtype, init_scale=config.initializer_range, rngs=rngs
        )

    def see(self, pictures: UInt8[Array, "N height width 3"]) -> Float[Array, "N n D"]:
        """Embeddings of pictures of one size.

        Raises:
          ValueError: see `VisionTower`.
        """
        return self.visual(pictures)

    def _embed(self, tokens, positions, sight: Sight | None):
        x, angles = super()._embed(tokens, positions, None)
        if sight is None:
            return x, angles
        config = self.config
        is_picture = tokens == config.image_token_id
        if sight.embeddings.shape[1]:
            num_rows, _, size, width = sight.embeddings.shape
            seen = sight.embeddings.reshape(num_rows, -1, width).astype(x.dtype)
            # The picture tokens of a row take their embeddings in turn.
            which = jnp.cumsum(is_picture.astype(jnp.int32), axis=1) - 1
            which += (sight.num_before % size)[:, None]
            which = jnp.clip(which, 0, seen.shape[1] - 1)
            parts = jnp.take_along_axis(seen, which[..., None], axis=1)
            x = jnp.where(is_picture[..., None], parts, x)
        places = picture_positions(is_picture, positions, sight.num_before, sight.grid)
        sections = config.mrope_section
        angles = section_angles(places, config.head_dim, config.rope_theta, sections)
        return x, angles
