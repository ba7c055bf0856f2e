from __future__ import annotations

import numpy as np
import pytest
from torch import tensor
from torch.nn.utils.rnn import pad_sequence

from model.batch import pad


def test_pad_fills_to_the_right() -> None:
    batch = pad([([5, 6, 7], [0, 0, 1]), ([8], [1])], pad_token_id=9)
    assert batch.input_ids.tolist() == [[5, 6, 7], [8, 9, 9]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch.token_type_ids.tolist() == [[0, 0, 1], [1, 0, 0]]


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_pad_equals_torch_for_lists_and_arrays(dtype: type) -> None:
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 99, n).astype(dtype) for n in (4, 1, 0, 9)]
    segments = [rng.integers(0, 2, len(each)).astype(dtype) for each in ids]
    expected = pad_sequence([tensor(each) for each in ids], True, padding_value=7).tolist()
    for texts in (list(zip(ids, segments, strict=True)), [(i.tolist(), i.tolist()) for i in ids]):
        batch = pad(texts, pad_token_id=7)
        assert batch.input_ids.tolist() == expected
        assert batch.attention_mask.sum(axis=1).tolist() == [4, 1, 0, 9]
        assert {array.dtype for array in vars(batch).values()} == {np.dtype(np.int64)}
