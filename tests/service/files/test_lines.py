"""Records of lines, CSV and Parquet against Python and pyarrow, and columns beside vectors."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv as arrow_csv

from model.artifact.manifest import Artifact
from service.files import rows as module
from service.files.local import PictureFileReader
from service.files.options import Encoding, Refused, UsageError
from service.files.rows import CsvRecords, InputFailure, JsonLines, TextLines
from service.inference.pictures import PictureReader
from service.settings import Settings
from tests.service.files.conftest import TEXTS, Encode
from tests.service.pictures import pictures_of

NONE: frozenset[str] = frozenset()


def test_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\n\ntwo\u2028 three\nlast".encode())
    source = TextLines(path, "a.txt", "body", NONE)
    rows = list(source.rows())
    assert [row.text for row in rows] == ["one", "", "two\u2028 three", "last"]
    assert [row.number for row in rows] == [1, 2, 3, 4]
    assert json.loads(source.json(rows[2]) + b"}") == {"body": "two\u2028 three"}
    assert source.values(rows[:2]) == [{"body": "one"}, {"body": ""}]


def test_what_is_no_text_of_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later lines are read as if the line did not exist."""
    monkeypatch.setattr(module, "MOST_ROW_BYTES", 8)
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\xff\xfe\nlonger than 8 bytes\n1234567\n")
    rows = list(TextLines(path, "a.txt", "text", NONE).rows())
    assert [row.text for row in rows] == ["one", None, None, "1234567"]
    assert rows[1].problem == "it is not UTF-8"
    assert rows[2].problem.startswith("it is longer than")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "it is not JSON: "),
        ("[1]", "it is not a JSON object"),
        ('{"body": "a"}', "it has no 'text'"),
        ('{"text": null}', "'text' is null, not a text"),
        ('{"text": ["a"]}', "'text' is a list, not a text"),
        ('{"text": true}', "'text' is a boolean, not a text"),
        ('{"text": "\\ud800"}', "it is not JSON: "),
        ('{"text": "a", "embedding": 1}', "it has 'embedding' already"),
    ],
)
def test_what_is_no_text_of_an_object(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{line}\n", encoding="utf-8")
    (row,) = JsonLines(path, "a.jsonl", "text", frozenset({"embedding"})).rows()
    assert (row.number, row.text) == (1, None)
    assert row.problem.startswith(problem)


def test_objects_keep_their_digits(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('\n  {"id": 12345678901234567890123, "text": "a" }  \n\n', encoding="utf-8")
    source = JsonLines(path, "a.jsonl", "text", NONE)
    (row,) = source.rows()
    assert (row.number, row.text) == (2, "a")
    assert source.json(row) == b'{"id": 12345678901234567890123, "text": "a"'


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
    monkeypatch.setattr(module, "MOST_ROW_BYTES", 100)
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


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_the_inputs_columns_are_kept(encode: Encode, rows: Path, tmp_path: Path) -> None:
    """Vectors of texts and tokens equal those in another format."""
    encode(rows, tmp_path / "out.jsonl")
    encode(rows, tmp_path / "out.npy")
    found = [json.loads(line) for line in lines_of(tmp_path / "out.jsonl")]
    assert [(one["id"], one["text"], one["tags"]) for one in found] == [
        (i, text, [i]) for i, text in enumerate(TEXTS)
    ]
    vectors = np.array([one["embedding"] for one in found], np.float32)
    np.testing.assert_array_equal(vectors, np.load(tmp_path / "out.npy"))


def test_pictures_are_decoded_side_by_side_and_in_order(
    artifact: Artifact, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, read = threading.Barrier(2, timeout=20), PictureReader.read

    def wait(self: PictureReader, *arguments: object) -> object:
        together.wait()
        return read(self, *arguments)

    monkeypatch.setattr(PictureReader, "read", wait)
    monkeypatch.setattr("service.files.local.os.cpu_count", lambda: 2)
    reader = PictureFileReader(pictures_of(artifact).manifest, Settings(), Encoding())
    paths = [photos / "02.PNG", photos / "damaged.jpg", photos / "00.PNG", photos / "04.PNG"]
    outcomes = reader.read([*map(str, paths)])
    read = [None if isinstance(one, Refused) else one.text.picture for one in outcomes]
    sizes = [None if picture is None else picture.size for picture in read]
    assert sizes == [(32, 20), None, (30, 20), (34, 20)]
