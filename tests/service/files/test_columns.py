"""JSON lines with the input's columns and the vectors after them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.service.files.conftest import TEXTS, Encode


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_the_inputs_columns_are_kept(encode: Encode, rows: Path, tmp_path: Path) -> None:
    """Vectors of texts and tokens equal those in another format."""
    encode(rows, tmp_path / "out.jsonl")
    encode(rows, tmp_path / "out.npy")
    found = [json.loads(line) for line in lines(tmp_path / "out.jsonl")]
    assert [(one["id"], one["text"], one["tags"]) for one in found] == [
        (i, text, [i]) for i, text in enumerate(TEXTS)
    ]
    vectors = np.array([one["embedding"] for one in found], np.float32)
    np.testing.assert_array_equal(vectors, np.load(tmp_path / "out.npy"))


def test_tokens(encode: Encode, tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_text("a cat\na longer text\n", encoding="utf-8")
    encode(source, tmp_path / "out.jsonl", kind="tokens")
    encode(source, tmp_path / "out.npz", kind="tokens")
    arrays = np.load(tmp_path / "out.npz")
    for line, start, end in zip(
        lines(tmp_path / "out.jsonl"),
        arrays["cu_seqlens"],
        arrays["cu_seqlens"][1:],
        strict=False,
    ):
        found = json.loads(line)
        assert found["token_ids"] == arrays["token_ids"][start:end].tolist()
        expected = arrays["embeddings"][start:end]
        np.testing.assert_array_equal(np.array(found["embeddings"], np.float32), expected)
