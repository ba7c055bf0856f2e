"""Arrays of texts, concatenated."""

from __future__ import annotations

import numpy as np

from service.files.fields import FIELDS, joined, reserved_names
from service.inference.attention.statistics import STATISTICS


def test_arrays_of_texts() -> None:
    texts = [(np.arange(n), np.full((n, 2), n)) for n in (3, 1)]
    found = joined("tokens", [2, 5], texts)
    assert {name: (a.dtype.name, a.tolist()) for name, a in found.items()} == {
        "rows": ("int64", [2, 5]),
        "token_ids": ("int32", [0, 1, 2, 0]),
        "embeddings": ("float32", [[3, 3], [3, 3], [3, 3], [1, 1]]),
        "lengths": ("int64", [3, 1]),
    }
    pooled = joined("pooled", [0, 1], [(np.ones(4),), (np.zeros(4),)])
    assert pooled["embedding"].tolist() == [[1] * 4, [0] * 4]
    assert pooled.keys() == {"rows", "embedding"}


def test_each_chunk_has_a_row() -> None:
    texts = [(np.arange(n), np.arange(n) + 1, np.full((n, 2), n)) for n in (2, 0, 1)]
    found = joined("chunks", [4, 5, 7], texts)
    assert {name: array.tolist() for name, array in found.items()} == {
        "rows": [4, 4, 7],
        "start": [0, 1, 0],
        "end": [1, 2, 1],
        "embedding": [[2, 2], [2, 2], [1, 1]],
    }
    assert reserved_names("chunks") == {"row", "start", "end", "embedding"}


def test_columns_that_are_added() -> None:
    assert reserved_names("pooled") == {"embedding"}
    assert reserved_names("stats") == {*STATISTICS}
    assert [field.name for field in FIELDS["sparse"]] == ["indices", "values"]
