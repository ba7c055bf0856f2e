from __future__ import annotations

import torch

from model.config.encoder import AdapterLayout, EncoderConfig
from model.low_rank import LowRank, with_chosen
from model.numerics.batch import pack
from model.packing import PackedBatch

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


def chosen(types: list[int], dtype: torch.dtype) -> torch.Tensor:
    batch = PackedBatch.of(pack([([1] * len(types), types)]))
    features = with_chosen(batch, CONFIG, dtype).low_rank
    assert features is not None
    return features


def test_a_token_type_chooses_the_features_of_its_adapter() -> None:
    features = chosen([0, 2, 3], torch.float16)
    assert features.dtype == torch.float16
    assert features.tolist() == [[0] * 6, [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1]]
    batch = PackedBatch.of(pack([([1], [0])]))
    assert with_chosen(batch, CONFIG.model_copy(update={"adapters": None}), torch.half) is batch


def test_each_token_gets_the_product_of_its_adapter() -> None:
    """Compare with B_k A_k x by the matrices of one adapter alone; a token without one gets 0."""
    torch.manual_seed(0)
    assert CONFIG.adapters
    adapters = LowRank(CONFIG.adapters, 4, 5)
    x, types = torch.randn(4, 4), [3, 0, 1, 3]
    with torch.no_grad():
        added = adapters(x, chosen(types, x.dtype))
        down, up = adapters.matrices
        for row, adapter in enumerate(types):
            a, b = down.reshape(3, 2, 4), up.reshape(5, 3, 2).transpose(0, 1)
            matrix = b[adapter - 1] @ a[adapter - 1] if adapter else torch.zeros(5, 4)
            torch.testing.assert_close(added[row], matrix @ x[row])
            if adapter:
                torch.testing.assert_close(adapters.matrix(adapter), matrix)
