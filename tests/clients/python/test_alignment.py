"""Parsing and printing of alignments."""

from __future__ import annotations

import json

import numpy as np
import pytest

from headscope import HeadscopeError
from headscope.alignment import AlignedWord, Link, read_alignments

RESULT = {
    "words": {
        "source": [
            {"text": "the", "start": 0, "end": 3},
            {"text": "animal", "start": 4, "end": 10},
        ],
        "target": [{"text": "Tier", "start": 0, "end": 4}],
    },
    "alignments": [
        {"source": 0, "target": 0, "score": 0.25},
        {"source": 1, "target": 0, "score": 0.5},
    ],
    "pharaoh": "0-0 1-0",
    "truncated": {"source": False, "target": True},
}
REPLY = {"model": "m", "backend": "onnx", "method": "mutual", "usage": {}}


def read(result):
    content = json.dumps(REPLY | {"results": [result]}).encode()
    return read_alignments(content, [["the animal", "Tier"]])[0]


def test_a_pair_of_words_is_a_line():
    found = read(RESULT)
    assert str(found) == "the     Tier\nanimal  Tier"
    assert found.pairs == [("the", "Tier"), ("animal", "Tier")]
    assert found.links == [Link(0, 0, 0.25), Link(1, 0, 0.5)]
    assert found.target == [AlignedWord("Tier", 0, 4)]
    assert (found.pharaoh, found.truncated, found.method) == ("0-0 1-0", (False, True), "mutual")
    assert str(read(RESULT | {"alignments": []})) == ""


def test_the_matrix():
    with pytest.raises(HeadscopeError, match="matrix=True"):
        _ = read(RESULT).matrix
    found = read(RESULT | {"matrix": [[0.25], [0.5]]}).matrix
    np.testing.assert_array_equal(found, np.array([[0.25], [0.5]], np.float32), strict=True)
    empty = RESULT | {"words": RESULT["words"] | {"target": []}, "matrix": [[], []]}
    assert read(empty).matrix.shape == (2, 0)


@pytest.mark.parametrize("missing", ["words", "alignments", "pharaoh", "truncated"])
def test_another_form_is_refused(missing):
    with pytest.raises(KeyError):
        read({name: value for name, value in RESULT.items() if name != missing})
    with pytest.raises(ValueError, match="zip"):
        read_alignments(json.dumps(REPLY | {"results": []}).encode(), [["a", "b"]])
