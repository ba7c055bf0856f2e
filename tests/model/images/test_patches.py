"""Rows of patches against PyTorch's convolution."""

from __future__ import annotations

import numpy as np
import torch

from model.images.patches import patch_rows


def test_rows_times_the_weight_are_the_convolution() -> None:
    rng = np.random.default_rng(3)
    values = rng.standard_normal(
        (3, 11, 17), dtype=np.float32
    )  # 2 × 4 patches of 4, and remainders
    weight = rng.standard_normal((5, 3, 4, 4), dtype=np.float32)
    expected = torch.nn.functional.conv2d(*map(torch.from_numpy, (values[None], weight)), stride=4)
    found = patch_rows(values, 4) @ weight.reshape(5, -1).T
    assert found.shape == (8, 5)
    np.testing.assert_allclose(found, expected[0].flatten(1).T.numpy(), atol=1e-5)
