"""Modules of the search: CSV as Python reads and writes it, and nDCG as in scikit-learn."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

pytestmark = pytest.mark.e2e
ROWS = [
    ["text", "title", "relevance", "rank"],
    ['He said "no", twice', "a;b\tc,d", "1", "2"],
    ["two\nlines, and\r\na third", "", "0.5", "1"],
    [" spaces ", '"', "", ""],
]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_csv_is_read_as_python_writes_it(
    call: Callable[..., Any], separator: str, end: str
) -> None:
    written = io.StringIO(newline="")
    csv.writer(written, delimiter=separator, lineterminator=end).writerows(ROWS)
    content = "\ufeff" + written.getvalue().rstrip("\r\n")  # no end of the last line
    found = call("core/csv", "parseCsv", content)
    assert [row["fields"] for row in found] == ROWS
    assert [row["line"] for row in found] == [1, 2, 3, 6]
    results = call("core/result-list", "readResults", content)["results"]
    assert [one["text"] for one in results] == [row[0].strip() for row in ROWS[1:]]
    assert [one["relevance"] for one in results] == [1, 0.5, None]


def test_csv_is_written_as_python_reads_it(call: Callable[..., Any]) -> None:
    content = call("core/csv", "toCsv", ROWS)
    assert [*csv.reader(io.StringIO(content, newline=""))] == ROWS


def test_formats_are_told_apart(call: Callable[..., Any]) -> None:
    for content, expected, count in [
        ("text messages are short, they say\nb", "lines", 2),
        ("TEXT,Title\na,b", "CSV", 1),
        ('{"passage": "a", "label": 2}\n\n{"text": "b"}', "JSONL", 2),
        ("", "lines", 0),
    ]:
        found = call("core/result-list", "readResults", content)
        assert found["format"] == expected
        assert len(found["results"]) == count


def test_quality_is_as_published(call: Callable[..., Any]) -> None:
    random = np.random.default_rng(0)
    for size in (2, 5, 12):
        marks, scores = random.integers(0, 4, size), random.random(size)
        marks[0] = 3
        order = call("core/ranking-metrics", "orderOf", scores.tolist())
        assert order == np.argsort(-scores).tolist()
        gains = marks[order].tolist()
        for most in (1, 3, size):
            expected = ndcg_score([marks], [scores], k=most)
            assert call("core/ranking-metrics", "ndcg", gains, most) == pytest.approx(expected)
            relevant = np.array(gains) > 0
            expected = relevant[:most].sum() / relevant.sum()
            assert call("core/ranking-metrics", "recall", gains, most) == pytest.approx(expected)
    assert call("core/ranking-metrics", "ndcg", [0, 0]) is None
    assert call("core/ranking-metrics", "ranksOf", [1, 2, 2]) == [3, 1, 2]


def test_words_and_their_values(call: Callable[..., Any]) -> None:
    """Values of a word's pieces are summed; what special tokens have is the rest."""
    info = {
        "tokens": ["[CLS]", "re", "##fund", "now", "[SEP]"],
        "offsets": [[0, 0], [0, 2], [2, 6], [8, 11], [0, 0]],
        "unknown": [3],
        "shares": [0.25, 0.5, 1, -2, 0.125],
    }
    found = call("core/marked-words", "markedText", "refund, now and then", info, True)
    words = [(word["label"], word["before"], word["value"]) for word in found["words"]]
    assert words == [("refund", "", 1.5), ("now", ", ", -2)]
    assert [word["unknown"] for word in found["words"]] == [False, True]
    assert (found["after"], found["rest"], found["largest"]) == (" and then", 0.375, 2)
    pieces = call("core/marked-words", "markedText", "refund, now and then", info, False)
    assert [word["label"] for word in pieces["words"]] == ["re", "fund", "now"]


def test_tokens_of_spaces_take_no_letter(call: Callable[..., Any]) -> None:
    """SentencePiece gives a leading space the place of the first letter."""
    info = {
        "tokens": ["▁", "H", "ow", "▁", "long"],
        "offsets": [[0, 1], [0, 1], [1, 3], [3, 4], [4, 8]],
        "unknown": [],
        "shares": [1, 2, 3, 4, 5],
    }
    found = call("core/marked-words", "markedText", "How long", info, False)
    words = [(word["before"], word["label"], word["value"]) for word in found["words"]]
    expected = [("", "␣", 1), ("", "H", 2), ("", "ow", 3), (" ", "␣", 4), ("", "long", 5)]
    assert words == expected
    [first, second] = call("core/marked-words", "markedText", "How long", info, True)["words"]
    assert (first["label"], first["value"]) == ("How", 6)
    assert (second["before"], second["label"], second["value"]) == (" ", "long", 9)


@pytest.mark.parametrize(
    ("scores", "scale"),
    [
        ([0.5, 0.25], {"low": 0, "zero": 0, "high": 0.5}),
        ([0.5, -0.25], {"low": -0.25, "zero": 0, "high": 0.5}),
        ([-1, -3], {"low": -3.3, "zero": -3.3, "high": -1}),
    ],
)
def test_the_best_score_has_the_longest_bar(
    call: Callable[..., Any], scores: list[float], scale: dict[str, float]
) -> None:
    assert call("core/ranking-metrics", "scaleOf", scores) == pytest.approx(scale)
