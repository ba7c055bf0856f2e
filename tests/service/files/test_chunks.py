"""`headscope encode --outputs chunks`: the engine here and a service write the same rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from headscope import Client
from model.artifact.manifest import Artifact
from service.engines.onnx import OnnxEngine
from service.files import chunks
from service.files.local import LocalEncoder
from service.files.options import Encoding, UsageError
from service.settings import Settings
from tests.service.files.conftest import Encode
from tests.service.harness import listening

LONG = "The animal was tired. It didn't cross the street, as Mr. Li saw. " * 60
TEXTS = ["A short text.", LONG, "", "Two sentences. And more."]
CHUNKS = {"kind": "chunks", "chunk_size": 40, "pooling": "mean", "normalize": True}


@pytest.fixture(scope="module")
def url(artifact: Artifact, onnx_engine: OnnxEngine) -> Iterator[str]:
    with listening(artifact, onnx_engine) as (_, port):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"id": n, "text": t}) + "\n" for n, t in enumerate(TEXTS)))
    return path


@pytest.mark.parametrize("other", [{"overflow": "windows"}, {"late": False}])
def test_rows_are_the_chunks_of_encode(
    encode: Encode, onnx_engine: OnnxEngine, source: Path, tmp_path: Path, url: str, other: Any
) -> None:
    here, there = tmp_path / "here.parquet", tmp_path / "there.parquet"
    assert encode(source, here, engine=onnx_engine, vector_type="float16", **CHUNKS, **other) == 0
    assert encode(source, there, url=url, vector_type="float16", **CHUNKS, **other) == 0
    assert pq.read_table(here).to_pylist() == pq.read_table(there).to_pylist()
    lines, arrays = tmp_path / "chunks.jsonl", tmp_path / "chunks.npz"
    for out in (lines, arrays):
        assert encode(source, out, engine=onnx_engine, **CHUNKS, **other) == 0
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    with Client(url) as client:
        chunk = {"by": "sentences", "size": 40, "late": "overflow" in other}
        asked: Any = {"overflow": "windows"} if "overflow" in other else {}
        found = client.encode(TEXTS, chunk=chunk, pooling="mean", normalize=True, **asked)
    assert [(row["id"], row["row"], row["start"], row["end"]) for row in rows] == [
        (n, n, *span) for n, own in enumerate(found) for span in own.spans
    ]
    assert len({row["row"] for row in rows}) == 3
    vectors = np.array([row["embedding"] for row in rows], np.float32)
    np.testing.assert_array_equal(vectors, found.span_vectors)
    with np.load(arrays) as file:
        assert file["rows"].tolist() == [row["row"] for row in rows]
        np.testing.assert_array_equal(file["embedding"], vectors)


def test_texts_that_do_not_fit_are_refused(
    encode: Encode,
    onnx_engine: OnnxEngine,
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def skipped(**options: Any) -> str:
        out = tmp_path / "out.npz"
        options |= {"engine": onnx_engine, "on_error": "skip", "restart": True}
        assert encode(source, out, **CHUNKS | options) == 3
        return capsys.readouterr().err

    assert "line 2: the text has" in skipped()
    monkeypatch.setattr(chunks, "STATE_BYTES", 2**14)
    assert "the limit is 16384: split it, or pass --no-late" in skipped(overflow="windows")


def test_a_pooling_without_spans_is_refused(artifact: Artifact, onnx_engine: OnnxEngine) -> None:
    encoding = Encoding("chunks", pooling="cls")
    with pytest.raises(UsageError, match=r'the pooling "cls" .* or pass --no-late'):
        LocalEncoder(artifact, Settings(device="cpu"), encoding, onnx_engine)
