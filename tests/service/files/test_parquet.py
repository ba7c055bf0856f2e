"""Rows of Parquet files that pyarrow wrote, and one type for every column."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.files.lines import JsonLines
from service.files.options import UsageError
from service.files.parquet import BATCH_ROWS, ParquetRows, Schema
from service.files.rows import InputFailure, Row

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
    with pytest.raises(InputFailure, match=r"a\.parquet is no Parquet file"):
        list(ParquetRows(path, "a.parquet", "text", NONE).rows())


def test_what_json_does_not_have(tmp_path: Path) -> None:
    rows_of = source(tmp_path / "a.parquet", {"text": ["a"], "blob": [b"\0"]})
    (row,) = rows_of.rows(whole=True)
    with pytest.raises(InputFailure, match=r"row 1: JSON has no such value .* write \.parquet"):
        rows_of.json(row)


def json_rows(*records: dict[str, Any]) -> list[Row]:
    lines = [json.dumps(record).encode() for record in records]
    return [Row(number, "", "", line) for number, line in enumerate(lines, 1)]


def test_columns_are_of_all_rows(tmp_path: Path) -> None:
    """Whole numbers become others, what is missing null, as pyarrow unifies schemas."""
    lines, schema = JsonLines(tmp_path, "a.jsonl", "text", NONE), Schema()
    first, second = json_rows({"n": 1, "a": None}), json_rows({"n": 1.5, "b": ["x"]})
    schema.add(lines, first)
    schema.add(lines, second)
    kinds = {"n": pa.float64(), "a": pa.null(), "b": pa.list_(pa.string())}
    assert schema.found == pa.schema(kinds)
    assert schema.table(lines, first + second).to_pylist() == [
        {"n": 1.0, "a": None, "b": None},
        {"n": 1.5, "a": None, "b": ["x"]},
    ]
    with pytest.raises(InputFailure, match=r"a\.jsonl, lines 1 to 1: .* write \.jsonl"):
        schema.add(lines, json_rows({"n": "one"}))


def test_files_have_the_same_columns(tmp_path: Path) -> None:
    schema = Schema()
    one = source(tmp_path / "a.parquet", {"text": ["a"]})
    schema.add(one, [])
    with pytest.raises(UsageError, match=r"b\.parquet has other columns"):
        schema.add(source(tmp_path / "b.parquet", {"text": ["a"], "n": [1]}), [])
