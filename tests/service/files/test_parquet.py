"""Parquet files: rows that pyarrow wrote, and columns of output."""

from __future__ import annotations

import datetime
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model.artifact.manifest import Artifact
from service.files import parquet
from service.files.options import UsageError
from service.files.parquet import BATCH_ROWS, ParquetRows, Schema
from service.files.rows import InputFailure, JsonLines, Row
from tests.service.files.conftest import TEXTS, Encode, FewBatches

NONE: frozenset[str] = frozenset()


def source(path: Path, table: dict[str, Any], *reserved: str) -> ParquetRows:
    pq.write_table(pa.table(table), path, row_group_size=100)
    return ParquetRows(path, path.name, "text", frozenset(reserved))


def test_rows(tmp_path: Path) -> None:
    count = BATCH_ROWS + 30
    texts = [None if i == 3 else f"text {i}" for i in range(count)]
    day = [datetime.date(2026, 1, 1)] * count
    columns = {"text": texts, "day": day, "n": list(range(count))}
    rows_of = source(tmp_path / "a.parquet", columns)
    rows = list(rows_of.rows(whole=True))
    assert [row.text for row in rows] == texts
    assert rows[3].problem == "'text' is null, not a text"
    chosen = [rows[i] for i in (0, 5, count - 1)]
    assert rows_of.table(chosen).to_pylist() == [
        {"text": texts[i], "day": day[0], "n": i} for i in (0, 5, count - 1)
    ]
    expected = {"text": "text 5", "day": "2026-01-01", "n": 5}
    assert json.loads(rows_of.json(rows[5]) + b"}") == expected
    assert [row.text for row in rows_of.rows()] == texts


def test_texts_by_a_dictionary(tmp_path: Path) -> None:
    texts = pa.array(["a", "b", "a"]).dictionary_encode()
    assert [row.text for row in source(tmp_path / "a.parquet", {"text": texts}).rows()] == [*"aba"]


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"body": ["a"]}, "no column 'text': --column names one of body"),
        ({"text": [1]}, "column 'text' is int64, not of texts"),
        ({"text": ["a"], "embedding": [1]}, "a column 'embedding', which the output adds"),
    ],
)
def test_other_columns(tmp_path: Path, table: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        list(source(tmp_path / "a.parquet", table, "embedding").rows())


def test_what_is_no_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(InputFailure, match=r"a\.parquet is not a readable Parquet file"):
        list(ParquetRows(path, "a.parquet", "text", NONE).rows())


UNFIT: dict[str, Any] = {
    "bytes": pa.array([b"a", None]),
    "a decimal": pa.array([None, Decimal("1.5")]),
    "no number": pa.array([1.0, math.nan]),
    "an infinite number": pa.array([1.0, -math.inf]),
    "a number in a list": pa.array([[{"a": 1.0}], [{"a": math.nan}]]),
    "a duration": pa.array([datetime.timedelta(1), None]),
    "an early time": pa.array([-(2**62), 0], pa.timestamp("ms")),
    "no UTF-8": pa.array([b"a", b"\xff"]).view(pa.string()),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_json_does_not_have_is_told_before_anything_is_computed(
    encode: Encode, artifact: Artifact, tmp_path: Path, name: str
) -> None:
    """By the column's name; a row that has no text is not written, whatever else it has."""
    source, engine = tmp_path / "a.parquet", FewBatches(artifact)
    table = pa.table({"id": [1, 2], "text": ["a", "b"], name: UNFIT[name]})
    pq.write_table(table, source)
    with pytest.raises(InputFailure, match=rf"column '{name}', rows 1 to 2: .* write \.parquet"):
        encode(source, tmp_path / "out.jsonl", engine)
    assert engine.texts == 0
    assert encode(source, tmp_path / "out.npy") == 0
    good = pa.table({"id": [3], "text": ["c"], name: pa.nulls(1, table.schema.field(name).type)})
    texts = pa.array([None, None, "c"], pa.string())
    pq.write_table(pa.concat_tables([table, good]).set_column(1, "text", texts), source)
    assert encode(source, tmp_path / "out.jsonl", on_error="skip") == 3


def test_what_json_has(encode: Encode, tmp_path: Path) -> None:
    values = {
        "none": [None],
        "text": ["a"],
        "day": [datetime.date(2026, 1, 2)],
        "time": [datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.UTC)],
        "list": [[{"a": [1, 2.5, True, None]}]],
    }
    pq.write_table(pa.table(values), tmp_path / "a.parquet")
    encode(tmp_path / "a.parquet", tmp_path / "out.jsonl")
    found = json.loads((tmp_path / "out.jsonl").read_text(encoding="utf-8"))
    expected = {"day": "2026-01-02", "time": "2026-01-02T03:00:00+00:00", "none": None}
    assert {name: found[name] for name in expected} == expected
    assert found["list"] == values["list"][0]


def json_rows(source: JsonLines, *records: dict[str, Any]) -> list[Row]:
    lines = [json.dumps(record).encode() for record in records]
    return [Row(source, number, "", "", line) for number, line in enumerate(lines, 1)]


def test_columns_are_of_all_rows(tmp_path: Path) -> None:
    """Integers become floats and missing values null, as pyarrow unifies schemas."""
    lines, schema = JsonLines(tmp_path, "a.jsonl", "text", NONE), Schema()
    first, second = ([row] for row in json_rows(lines, {"n": 1, "a": None}, {"n": 1.5, "b": ["x"]}))
    schema.add(lines, first)
    schema.add(lines, second)
    kinds = {"n": pa.float64(), "a": pa.null(), "b": pa.list_(pa.string())}
    assert schema.columns == pa.schema(kinds)
    assert schema.table(first + second).to_pylist() == [
        {"n": 1.0, "a": None, "b": None},
        {"n": 1.5, "a": None, "b": ["x"]},
    ]
    with pytest.raises(InputFailure, match=r"a\.jsonl, lines 1 to 1: .* write \.jsonl"):
        schema.add(lines, json_rows(lines, {"n": "one"}))


def test_files_have_the_same_columns(tmp_path: Path) -> None:
    schema = Schema()
    one = source(tmp_path / "a.parquet", {"text": ["a"]})
    schema.add(one, [])
    with pytest.raises(UsageError, match=r"b\.parquet has other columns"):
        schema.add(source(tmp_path / "b.parquet", {"text": ["a"], "n": [1]}), [])


def test_columns_and_embedding(
    encode: Encode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = [datetime.date(2026, 1, 1 + i % 28) for i in range(len(TEXTS))]
    table = pa.table({"day": day, "body": TEXTS, "n": pa.array(range(len(TEXTS)), pa.int16())})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=77)
    monkeypatch.setattr(parquet, "GROUP_BYTES", 100_000)
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


@pytest.mark.parametrize(
    ("kind", "expected_rows"), [("tokens", [0, 1, 2]), ("stats", [0, 1, 2]), ("chunks", [0, 0, 1])]
)
def test_arrays_of_arrays(
    encode: Encode, tmp_path: Path, kind: str, expected_rows: list[int]
) -> None:
    """Arrays equal those in the archive of the same run, also as JSON."""
    source, texts = tmp_path / "a.txt", ["a cat. a dog and a cat.", "a cat", ""]
    source.write_text("\n".join([*texts, ""]), encoding="utf-8")
    options = {"chunk_size": 8} if kind == "chunks" else {}
    for suffix in ("parquet", "jsonl", "npz"):
        encode(source, tmp_path / f"out.{suffix}", kind=kind, **options)
    table = pq.read_table(tmp_path / "out.parquet")
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    objects = [json.loads(line) for line in lines]
    arrays = dict(np.load(tmp_path / "out.npz"))
    rows, bounds = arrays.pop("rows").tolist(), arrays.pop("cu_seqlens", None)
    assert {*table.column_names} - {"text", "row"} == arrays.keys()
    assert rows == expected_rows
    assert table["text"].to_pylist() == [texts[row] for row in rows]
    for name, array in arrays.items():
        expected = array if bounds is None else np.split(array, bounds[1:-1])
        for found in (table[name].to_pylist(), [one[name] for one in objects]):
            for own, wanted in zip(found, expected, strict=True):
                np.testing.assert_array_equal(np.array(own, array.dtype), wanted)
    ends = [(own[0], own[-1]) for own in table.to_pydict().get("token_ids", ())]
    assert {*ends} <= {(101, 102)}


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
