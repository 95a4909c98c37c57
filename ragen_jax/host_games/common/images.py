"""Images as texts: PNG files in base64, as chat messages and workers carry them."""

import base64
import io

import numpy as np
from jaxtyping import UInt8


def png_base64(pixels: UInt8[np.ndarray, "H W 3"]) -> str:
    """An image as a PNG file in base64."""
    from PIL import Image  # most games show none

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")
