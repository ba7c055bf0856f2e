"""Arrays of texts, concatenated."""

from __future__ import annotations

import numpy as np

from service.files.fields import FIELDS, joined, reserved_names
from service.inference.attention.statistics import STATISTICS


def test_arrays_of_texts() -> None:
    texts = [(np.arange(n), np.full((n, 2), n)) for n in (3, 1)]
    found = joined("tokens", texts)
    assert {name: (a.dtype.name, a.tolist()) for name, a in found.items()} == {
        "token_ids": ("int32", [0, 1, 2, 0]),
        "embeddings": ("float32", [[3, 3], [3, 3], [3, 3], [1, 1]]),
        "lengths": ("int64", [3, 1]),
    }
    pooled = joined("pooled", [(np.ones(4),), (np.zeros(4),)])
    assert pooled["embedding"].tolist() == [[1] * 4, [0] * 4]
    assert pooled.keys() == {"embedding"}


def test_columns_that_are_added() -> None:
    assert reserved_names("pooled") == {"embedding"}
    assert reserved_names("stats") == {*STATISTICS}
    assert [field.name for field in FIELDS["sparse"]] == ["indices", "values"]
