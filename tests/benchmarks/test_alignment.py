"""Alignment error rates by hand, and of a service that knows every answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.alignment import Aligned, Score, read, run, score, table
from headscope import Link

TEXTS = ["the  big dog ||| der große Hund \n", "so ||| \n"]
GOLD = ["1-1 2p2 3-3\n", "\n"]


def test_gold_alignments_are_read_from_either_first_number():
    expected = [
        Aligned("the big dog", "der große Hund", {(0, 0), (2, 2)}, {(0, 0), (1, 1), (2, 2)}),
        Aligned("so", "", set(), set()),
    ]
    assert list(read(TEXTS, GOLD, 1)) == expected
    assert list(read(TEXTS, ["0-0 1p1 2-2", ""], 0)) == expected
    with pytest.raises(ValueError, match="zip"):
        list(read(TEXTS, GOLD[:1], 1))


def test_error_rates_by_hand():
    """Of 3 found, 1 is sure, 2 are possible, and 2 were sure: 1 − (1 + 2) / (3 + 2)."""
    pairs = list(read(TEXTS, GOLD, 1))
    found = [{(0, 0), (1, 1), (1, 2)}, set()]
    assert score(pairs, found) == (2 / 3, 1 / 2, pytest.approx(2 / 5))
    assert score(pairs, [pairs[0].possible, set()]) == (1, 1, 0)
    assert score(pairs, [set(), set()]) == (0, 0, 1)


def test_every_method_of_every_layer():
    asked = []

    def align(texts: Any, **fields: Any) -> list[Any]:
        asked.append(fields)
        right = [Link(0, 0, 1.0), Link(2, 2, 1.0)]
        links = right[: 2 if fields.get("layer") == 1 else 1]
        assert texts == [("the big dog", "der große Hund"), ("so", "")]
        return [SimpleNamespace(links=links), SimpleNamespace(links=[])]

    client: Any = SimpleNamespace(align=align)
    rows = list(run(client, list(read(TEXTS, GOLD, 1)), [0, 1], ["mutual", "cross"]))
    assert rows == [
        Score("mutual", 0, 1.0, 0.5, pytest.approx(1 / 3)),
        Score("mutual", 1, 1.0, 1.0, 0.0),
        Score("cross", None, 1.0, 0.5, pytest.approx(1 / 3)),
    ]
    common = {"split": "spaces", "truncate": True}
    assert asked == [
        *({"method": "mutual", "layer": layer} | common for layer in (0, 1)),
        {"method": "cross"} | common,
    ]
    heads, _, *lines = table(rows).splitlines()
    assert heads == "| layer | mutual | cross |"
    assert lines == ["| 0 | 33.3 |  |", "| 1 | 0.0 |  |", "|  |  | 33.3 |"]
