from __future__ import annotations

import numpy as np
import pytest

from model.config.encoder import AdapterLayout, EncoderConfig
from model.numerics.low_rank import of_segment

CONFIG = EncoderConfig(
    model_type="jina_embeddings_v3",
    vocab_size=9,
    hidden_size=4,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=4,
    hidden_act="gelu",
    max_position_embeddings=9,
    type_vocab_size=4,
    layer_norm_eps=1e-5,
    pad_token_id=0,
    adapters=AdapterLayout(count=3, rank=2),
)


@pytest.mark.parametrize(
    ("key", "shape", "low_rank", "down", "up"),
    [
        ("layers.0.a.query.weight", (5, 4), "layers.0.a.low_rank.query.{}.weight", (6, 4), (5, 6)),
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
    adapted = of_segment(tensors, 2, CONFIG)
    ends = "ij,jk->ik" if len(shape) == 2 else "nij,jk->nik" if b.ndim == 3 else "ij,njk->nik"
    expected = weight + np.einsum(ends, b[..., 2:4], a[..., 2:4, :])
    np.testing.assert_allclose(adapted[key], expected, atol=1e-6)
    assert adapted[key.replace("weight", "bias")] is bias
    assert [*adapted] == [*tensors]
    assert len(adapted) == len(tensors)
    assert of_segment(tensors, 0, CONFIG) is tensors
