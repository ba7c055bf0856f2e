from __future__ import annotations

import torch

from model.adapters import LowRank, chosen_features
from model.config.encoder import AdapterLayout

LAYOUT = AdapterLayout(count=3, rank=2)


def test_a_token_type_chooses_the_features_of_its_adapter() -> None:
    chosen = chosen_features(LAYOUT, torch.tensor([[0, 2, 3]]), torch.float16)
    assert chosen.dtype == torch.float16
    assert chosen.tolist() == [[[0] * 6, [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1]]]


def test_each_token_gets_the_product_of_its_adapter() -> None:
    """Compare with B_k A_k x by the matrices of one adapter alone; a token without one gets 0."""
    torch.manual_seed(0)
    adapters = LowRank(LAYOUT, 4, 5)
    x, types = torch.randn(4, 4), torch.tensor([3, 0, 1, 3])
    with torch.no_grad():
        added = adapters(x, chosen_features(LAYOUT, types, x.dtype))
        down, up = adapters.matrices
        for row, adapter in enumerate(types.tolist()):
            a, b = down.reshape(3, 2, 4), up.reshape(5, 3, 2).transpose(0, 1)
            matrix = b[adapter - 1] @ a[adapter - 1] if adapter else torch.zeros(5, 4)
            torch.testing.assert_close(added[row], matrix @ x[row])
            if adapter:
                torch.testing.assert_close(adapters.matrix(adapter), matrix)
