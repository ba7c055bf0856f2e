"""Alignment error rates, by hand and from a service with the gold alignments."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.alignment import Aligned, Score, ask, compute, read, score, table
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
    """3 links, 1 of them sure and 2 possible, against 2 sure links: 1 − (1 + 2) / (3 + 2)."""
    pairs = list(read(TEXTS, GOLD, 1))
    found = [{(0, 0), (1, 1), (1, 2)}, set()]
    assert score(pairs, found) == (2 / 3, 1 / 2, pytest.approx(2 / 5))
    assert score(pairs, [pairs[0].possible, set()]) == (1, 1, 0)
    assert score(pairs, [set(), set()]) == (0, 0, 1)


def test_every_method_of_a_service():
    asked = []

    def align(texts: Any, **fields: Any) -> list[Any]:
        asked.append((len(texts), fields))
        links = [Link(0, 0, 1.0), Link(2, 2, 1.0)][: 2 if fields["method"] == "cross" else 1]
        return [SimpleNamespace(links=links if text[1] else []) for text in texts]

    client: Any = SimpleNamespace(align=align, info=lambda: SimpleNamespace(decoder_layers=1))
    pairs = [*read(TEXTS, GOLD, 1)] * 9
    assert list(ask(client, pairs, ["mutual", "cross"])) == [
        Score("mutual", None, 1.0, 0.5, pytest.approx(1 / 3)),
        Score("cross", None, 1.0, 1.0, 0.0),
        Score("cross", 0, 1.0, 1.0, 0.0),
    ]
    common = {"split": "spaces", "truncate": True}
    fields = [{"method": "mutual"}, {"method": "cross"}, {"method": "cross", "layers": [0]}]
    assert asked == [(count, one | common) for one in fields for count in (16, 2)]


def test_a_text_is_aligned_with_itself_in_every_layer(exported, small_checkpoint):
    text = "the animal was too tired , unbelievably"
    gold = {(i, i) for i in range(7)}
    rows = list(
        compute(exported(small_checkpoint, "small"), [Aligned(text, text, gold, gold)], ["mutual"])
    )
    assert rows == [Score("mutual", layer, 1.0, 1.0, 0.0) for layer in (0, 1, 2)]


def test_a_table_has_a_row_a_layer():
    rows = [Score("a", 0, 1, 1, 1 / 3), Score("b", 0, 1, 1, 0.5), Score("a", 1, 1, 1, 0.0)]
    assert table(rows).splitlines() == [
        "| layer | a | b |",
        "| --- | --- | --- |",
        "| 0 | 33.3 | 50.0 |",
        "| 1 | 0.0 |  |",
    ]
