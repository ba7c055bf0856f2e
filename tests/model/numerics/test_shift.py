from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.bart import modeling_bart as bart
from transformers.models.mbart import modeling_mbart as mbart

from model.numerics.shift import shift_right


@pytest.mark.parametrize("labels", [[5], [5, 6, 7, 2], [1, 9]])
def test_labels_are_shifted_as_transformers_does(labels: list[int]) -> None:
    ids, given = np.array(labels, np.int64), torch.tensor([labels])
    expected = bart.shift_tokens_right(given, 0, 3)[0].tolist()
    assert shift_right(ids, 3).tolist() == expected
    assert shift_right(ids, None).tolist() == mbart.shift_tokens_right(given, 0)[0].tolist()
    assert ids.tolist() == labels


@pytest.mark.parametrize("start", [3, None])
def test_no_labels_stay_none(start: int | None) -> None:
    assert shift_right(np.array([], np.int64), start).tolist() == []
