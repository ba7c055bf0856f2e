"""Lines, against Python's own splitting, and the error of each line without a text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.files import lines
from service.files.lines import JsonLines, TextLines

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
    monkeypatch.setattr(lines, "MOST_ROW_BYTES", 8)
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
