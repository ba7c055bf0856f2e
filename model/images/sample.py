"""Picture for measurements of the preprocessing."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from PIL import Image


def sample_file(edge: int) -> bytes:
    """Return a JPEG file of soft random colours, the same in each call."""
    small = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    file = BytesIO()
    Image.fromarray(small).resize((edge, edge), Image.Resampling.BICUBIC).save(file, "JPEG")
    return file.getvalue()
