"""Images as texts: PNG files in base64, as chat messages and workers carry them."""

import base64
import binascii
import io

import numpy as np
from jaxtyping import UInt8

# Of an image that is read, so that a small file cannot fill the memory.
MAX_PIXELS = 2**24


def png_base64(pixels: UInt8[np.ndarray, "H W 3"]) -> str:
    """An image as a PNG file in base64."""
    from PIL import Image  # most games show none

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")


def read_png_base64(text: str) -> UInt8[np.ndarray, "H W 3"]:
    """The image of a PNG file in base64.

    Raises:
      ValueError: it is none, or has more than `MAX_PIXELS`.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        file = io.BytesIO(base64.b64decode(text, validate=True))
        with Image.open(file, formats=("PNG",)) as image:
            if image.width * image.height > MAX_PIXELS:
                size = f"{image.width} x {image.height}"
                raise ValueError(f"an image has {size} pixels, over {MAX_PIXELS}")
            return np.asarray(image.convert("RGB"))
    except Image.DecompressionBombError as error:
        raise ValueError(f"an image is too large: {error}") from error
    except (
        *(TypeError, binascii.Error, UnidentifiedImageError, OSError),
        SyntaxError,  # of a damaged file
    ) as error:
        raise ValueError(f"an image is no PNG file in base64: {error}") from error
