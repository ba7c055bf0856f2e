"""Output files, read by numpy's and safetensors' own readers, and whole parts."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, load_file

from service.files.options import ROWS
from service.files.parts import (
    Part,
    Skipped,
    Spec,
    importance_table,
    read_parts,
    write_npy,
    write_npz,
    write_part,
    write_safetensors,
)

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
    write_npy(file, parts, "embeddings")
    np.testing.assert_array_equal(np.load(io.BytesIO(file.getvalue())), VECTORS, strict=True)


ARRAYS = {
    "embedding": np.arange(6, dtype=np.float32).reshape(2, 3),
    "rows": np.array([4, 6], np.int64),
    "ids": np.array([7], np.int32),
}


def test_a_part_as_the_library_reads_it(tmp_path: Path) -> None:
    write_part(tmp_path, 4, 7, ARRAYS, [Skipped("a.txt, line 6", "it is not UTF-8")])
    write_part(tmp_path, 0, 4, {}, [])
    (path,) = tmp_path.glob("*4.part")
    found = load_file(path)
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array, strict=True)
    first, second = read_parts(tmp_path)
    assert (first.start, first.end, first.texts, first.specs) == (0, 4, 0, {})
    assert (second.start, second.end, second.texts) == (4, 7, 2)
    assert second.skips == 1
    assert second.skipped() == [Skipped("a.txt, line 6", "it is not UTF-8")]
    assert second.specs["embedding"] == Spec("float32", (2, 3))
    np.testing.assert_array_equal(second.array("rows"), [4, 6])


@pytest.mark.parametrize("kept", [0, 7, 60, -1])
def test_what_is_damaged_is_not_there(tmp_path: Path, kept: int) -> None:
    write_part(tmp_path, 0, 2, ARRAYS, [])
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:kept])
    assert list(read_parts(tmp_path)) == []


def test_each_text_counts_once(tmp_path: Path) -> None:
    """This holds in every part; parts without texts are left out."""
    values = np.random.default_rng(0).random((5, 3, 2), np.float32)
    for start, end in ((0, 4), (4, 5)):
        content = {"importance": values[start:end], ROWS: np.arange(start, end)}
        write_part(tmp_path, start, end, content, [])
    write_part(tmp_path, 5, 6, {}, [])
    title, heads, *rows = importance_table([*read_parts(tmp_path)]).splitlines()
    assert title == "mean of 1 - cosine without each head, over 5 texts"
    assert heads.split() == ["layer", "\\", "head", "0", "1"]
    for layer, (row, wanted) in enumerate(zip(rows, values.mean(axis=0), strict=True)):
        number, *found = row.split()
        assert int(number) == layer
        np.testing.assert_allclose([float(value) for value in found], wanted, atol=5e-6)
