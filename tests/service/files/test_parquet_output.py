"""Parquet output: fixed-size lists beside the input's columns, whatever their types."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model.artifact.manifest import Artifact
from service.files import parquet_output
from service.files.options import UsageError
from service.files.rows import InputFailure
from tests.service.files.conftest import TEXTS, Encode, FewBatches


def test_columns_and_embedding(
    encode: Encode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = [datetime.date(2026, 1, 1 + i % 28) for i in range(len(TEXTS))]
    table = pa.table({"day": day, "body": TEXTS, "n": pa.array(range(len(TEXTS)), pa.int16())})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=77)
    monkeypatch.setattr(parquet_output, "GROUP_BYTES", 100_000)
    options = {"column": "body"}
    encode(tmp_path / "in.parquet", tmp_path / "out.parquet", **options)
    encode(tmp_path / "in.parquet", tmp_path / "out.npy", **options)
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.select(table.column_names).equals(table)
    size = np.load(tmp_path / "out.npy").shape[1]
    assert found.schema.field("embedding").type == pa.list_(pa.float32(), size)
    flat = found["embedding"].combine_chunks().flatten().to_numpy()
    np.testing.assert_array_equal(flat.reshape(-1, size), np.load(tmp_path / "out.npy"))
    assert pq.ParquetFile(tmp_path / "out.parquet").num_row_groups > 1


@pytest.mark.parametrize(("kind", "column"), [("tokens", "embeddings"), ("stats", "entropy")])
def test_arrays_of_arrays(encode: Encode, tmp_path: Path, kind: str, column: str) -> None:
    """Arrays equal those in the archive of the same run."""
    source = tmp_path / "a.txt"
    source.write_text("a cat\na longer text\n", encoding="utf-8")
    encode(source, tmp_path / "out.parquet", kind=kind)
    encode(source, tmp_path / "out.npz", kind=kind)
    found = pq.read_table(tmp_path / "out.parquet")[column].to_pylist()
    rows = [one for text in found for one in text] if kind == "tokens" else found
    expected = np.load(tmp_path / "out.npz")[column]
    np.testing.assert_array_equal(np.array(rows, np.float32), expected)


def test_csv_and_lines_together(encode: Encode, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n1,a\n2,b\n", encoding="utf-8")
    (tmp_path / "b.jsonl").write_text('{"text": "c"}\n', encoding="utf-8")
    encode([tmp_path / "a.csv", tmp_path / "b.jsonl"], tmp_path / "out.parquet")
    found = pq.read_table(tmp_path / "out.parquet").select(["id", "text"]).to_pylist()
    assert found == [
        {"id": id_, "text": text} for id_, text in zip(["1", "2", None], "abc", strict=True)
    ]
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "c.parquet")
    with pytest.raises(UsageError, match="encode them apart"):
        encode([tmp_path / "a.csv", tmp_path / "c.parquet"], tmp_path / "other.parquet")


DEEP = '{"a":' * 200 + "1" + "}" * 200


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (['{"text": "a", "v": {}}'], "no child field"),
        ([f'{{"text": "a", "v": {2**63}}}'], "lines 1 to 1: .*too large"),
        ([f'{{"text": "a", "v": {DEEP}}}'], "too deeply nested"),
        (
            [f'{{"text": "a", "v": {2**60 + 1}}}'] * 1024 + ['{"text": "a", "v": 0.5}'],
            "lines 1 to 1024: ",
        ),
    ],
)
def test_columns_are_tried_before_a_text_is_computed(
    encode: Encode, artifact: Artifact, tmp_path: Path, lines: list[str], says: str
) -> None:
    """An engine that fails at its first batch is never called."""
    source = tmp_path / "a.jsonl"
    source.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(InputFailure, match=says):
        encode(source, tmp_path / "out.parquet", FewBatches(artifact, 0))
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
