from __future__ import annotations

import numpy as np
import pytest

from model.config.encoder import AdapterLayout
from model.numerics.adapters import with_adapter

LAYOUT = AdapterLayout(count=3, rank=2)


@pytest.mark.parametrize(
    ("key", "shape", "low_rank", "down", "up"),
    [
        ("layers.0.a.query.weight", (5, 4), "layers.0.a.adapters.query.{}.weight", (6, 4), (5, 6)),
        ("query_weight.1", (2, 5, 4), "query_{}.1", (6, 4), (2, 5, 6)),
        ("output_weight.0", (2, 5, 4), "output_{}.0", (2, 6, 4), (5, 6)),
    ],
)
def test_weights_get_the_product_of_one_adapter(
    key: str, shape: tuple[int, ...], low_rank: str, down: tuple[int, ...], up: tuple[int, ...]
) -> None:
    generator = np.random.default_rng(0)
    weight, a, b = (generator.standard_normal(size, np.float32) for size in (shape, down, up))
    bias = np.ones(3, np.float32)
    tensors = {
        key: weight,
        low_rank.format("down"): a,
        low_rank.format("up"): b,
        key.replace("weight", "bias"): bias,
    }
    adapted = with_adapter(tensors, 2, LAYOUT)
    ends = "ij,jk->ik" if len(shape) == 2 else "nij,jk->nik" if b.ndim == 3 else "ij,njk->nik"
    expected = weight + np.einsum(ends, b[..., 2:4], a[..., 2:4, :])
    np.testing.assert_allclose(adapted[key], expected, atol=1e-6)
    assert adapted[key.replace("weight", "bias")] is bias
    assert [*adapted] == [*tensors]
    assert len(adapted) == len(tensors)
    assert with_adapter(tensors, 0, LAYOUT) is tensors
