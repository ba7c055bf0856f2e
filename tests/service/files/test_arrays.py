"""Outputs of arrays, read by numpy's and safetensors' own readers."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from service.files.arrays import write_npz, write_safetensors, write_vectors
from service.files.parts import Part, read_parts, write_part

IDS, VECTORS = np.arange(5, dtype=np.int32), np.arange(10, dtype=np.float32).reshape(5, 2)


@pytest.fixture
def parts(tmp_path: Path) -> list[Part]:
    """Return parts: two texts of 1 and 2 tokens, a skipped text alone, and a text of 2 tokens."""
    for start, rows, lengths, tokens in (
        (0, [0, 1], [1, 2], slice(0, 3)),
        (3, [3], [2], slice(3, 5)),
    ):
        arrays = {
            "token_ids": IDS[tokens],
            "embeddings": VECTORS[tokens],
            "lengths": np.array(lengths, np.int64),
            "rows": np.array(rows, np.int64),
        }
        write_part(tmp_path, start, start + 2, arrays, [])
    write_part(tmp_path, 2, 3, {}, [])
    return list(read_parts(tmp_path))


def test_ragged_arrays(parts: list[Part]) -> None:
    expected = {
        "token_ids": IDS,
        "embeddings": VECTORS,
        "cu_seqlens": np.array([0, 1, 3, 5], np.int64),
        "rows": np.array([0, 1, 3], np.int64),
    }
    archive, tensors = io.BytesIO(), io.BytesIO()
    write_npz(archive, parts)
    archive.seek(0)
    write_safetensors(tensors, parts)
    for found in (dict(np.load(archive)), load(tensors.getvalue())):
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, strict=True)


def test_vectors(parts: list[Part]) -> None:
    file = io.BytesIO()
    write_vectors(file, parts, "embeddings")
    np.testing.assert_array_equal(np.load(io.BytesIO(file.getvalue())), VECTORS, strict=True)
