"""CSV, against pyarrow's reader; errors name the number of a malformed record."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv as arrow_csv

from service.files import comma_separated
from service.files.comma_separated import CsvRecords
from service.files.options import UsageError
from service.files.rows import InputFailure


def source(path: Path, content: bytes, *reserved: str) -> CsvRecords:
    path.write_bytes(content)
    return CsvRecords(path, path.name, "text", frozenset(reserved))


GOOD = b"""\xef\xbb\xbfid,text
007,plain
1,"with, comma ""and"" quote"
2,"two
lines"
3,

4,\xc3\xa9
"""


def test_records(tmp_path: Path) -> None:
    records = source(tmp_path / "a.csv", GOOD)
    rows = list(records.rows())
    kinds = {"id": pa.string(), "text": pa.string()}
    expected = arrow_csv.read_csv(
        tmp_path / "a.csv",
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(column_types=kinds),
    ).to_pylist()
    assert records.values(rows) == expected
    assert [row.text for row in rows] == [record["text"] for record in expected]
    assert [row.number for row in rows] == [1, 2, 3, 4, 5]
    assert records.json(rows[0]) == b'{"id":"007","text":"plain"'


def test_what_is_no_record(tmp_path: Path) -> None:
    content = b'id,text\n0,good\n1\n2,\xff\n3,"a"b\n4,good\n5,"open\n'
    rows = list(source(tmp_path / "a.csv", content).rows())
    assert [row.text for row in rows] == ["good", None, None, None, "good", None]
    assert [row.problem.partition(":")[0] for row in rows if row.problem] == [
        "it has 1 fields, the header 2",
        "it is not UTF-8",
        "it is not CSV",
        "it is not CSV",
    ]


def test_a_quote_that_swallows_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comma_separated, "MOST_ROW_BYTES", 100)
    records = source(tmp_path / "a.csv", b'id,text\n1,"' + b"open\n" * 100)
    with pytest.raises(InputFailure, match=r"a\.csv, row 1, line \d+: a quote is not closed"):
        list(records.rows())


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (b"", "no column 'text': --column names one of none"),
        (b"id,body\n", "names one of id, body"),
        (b"text,text\n", "two columns have the same name"),
        (b"text,embedding\n", "a column 'embedding', which the output adds"),
    ],
)
def test_headers(tmp_path: Path, header: bytes, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        list(source(tmp_path / "a.csv", header, "embedding").rows())
