"""The images that host games show in a rollout.

In: PNG files in base64, as workers send them. Out: the tokens of each, and one array of
all that were shown, which a network reads beside the tokens.
"""

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from ragen_jax.devices.sharding import by_rows, replicated
from ragen_jax.host_games.common.images import read_png_base64
from ragen_jax.models.config import ModelConfig
from ragen_jax.text.pictures import BEGIN, END, HostPicture
from ragen_jax.text.tokenizer import Tokenizer
from ragen_jax.types import IDS_PER_HOST_GAME, Images


def no_images(
    picture: HostPicture, model: ModelConfig, num_rows: int, max_turns: int
) -> Images:
    """The images of a rollout before any was shown.

    A row may show one at its start and after each turn.

    Args:
      picture: what an image is in tokens.
      model: who sees it; an image gets as many pixels as its tokens cover.
    """
    cell = model.vision.cell
    sides = picture.rows * cell, picture.cols * cell
    shape = num_rows * (max_turns + 1), *sides, 3
    return {picture.kind: np.zeros(shape, np.uint8)}


class RolloutImages:
    """The images of a rollout, each once, numbered as they come.

    Args:
      picture: what an image is in tokens.
      empty: see `no_images`.
      tokenizer: the model's.
      mesh: of the rollout's devices.
    """

    def __init__(
        self, picture: HostPicture, empty: Images, tokenizer: Tokenizer, mesh: Mesh
    ):
        self._picture, self._mesh = picture, mesh
        self._pixels = empty[picture.kind]
        if len(self._pixels) * picture.size > IDS_PER_HOST_GAME:
            raise ValueError(
                f"a rollout may show {len(self._pixels)} images of {picture.size} "
                f"tokens, and {IDS_PER_HOST_GAME} tokens have a number; lower "
                "rollout.num_groups, rollout.max_turns or host.image_grid"
            )
        self._frame = tokenizer.id_of(BEGIN), tokenizer.id_of(END)
        self._numbers: dict[str, int] = {}
        self._num_sent, self._sent = -1, {}

    def ids(self, file: str) -> list[int]:
        """The tokens of an image: those of an equal one, if there has been any."""
        if file not in self._numbers:
            number = self._numbers[file] = len(self._numbers)
            self._pixels[number] = _fit(read_png_base64(file), self._pixels.shape[1:3])
        begin, end = self._frame
        return [begin, *self._picture.ids(self._numbers[file]), end]

    def on_devices(self) -> Images:
        """All images so far, on every device of the rollout."""
        if self._num_sent < len(self._numbers):
            self._num_sent = len(self._numbers)
            # A copy: on a CPU the device may share the host's memory.
            sent = jax.device_put(self._pixels.copy(), replicated(self._mesh))
            self._sent = {self._picture.kind: sent}
        return self._sent

    def of_batch(self) -> Images:
        """All images, split as the batch is."""
        return jax.device_put(self.on_devices(), by_rows(self._mesh))


def _fit(pixels: np.ndarray, sides: Sequence[int]) -> np.ndarray:
    """An image with sides of these pixels."""
    from PIL import Image  # most games show none

    height, width = sides
    if pixels.shape[:2] == (height, width):
        return pixels
    # As the image processors of Qwen2.5-VL do.
    how = Image.Resampling.BICUBIC
    return np.asarray(Image.fromarray(pixels).resize((width, height), how))
