"""Makes the tower's input of a picture, with the arithmetic of the Idefics3 processor without splitting.

The longer side becomes ``LONGEST`` pixels, then the picture becomes a square of ``SIDE`` whatever its proportions, both with
Lanczos; values are scaled to -1..1 by the trainer. ``demo/evaluate_pictures.py`` compares it with the real processor.
"""

import numpy as np
from PIL import Image

SIDE = 108
PATCH = 12
GRID = SIDE // PATCH
LONGEST = 180


def prepare(picture: Image.Image) -> np.ndarray:
    """The square as ``[SIDE, SIDE, 3]`` bytes."""
    width, height = picture.size
    if width >= height:
        size = (LONGEST, even(int(LONGEST / (width / height))))
    else:
        size = (even(int(LONGEST * (width / height))), LONGEST)
    first = picture.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    return np.asarray(first.resize((SIDE, SIDE), Image.Resampling.LANCZOS))


def even(length: int) -> int:
    """The next even number, at least 1."""
    return max(1, length + length % 2)
