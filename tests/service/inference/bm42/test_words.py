"""The words of a text and their weights, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from service.inference.bm42.hashing import murmur3
from service.inference.bm42.words import STOP_WORDS, sparse_vector, word_weights

SPECIAL = {"[CLS]", "[SEP]", "[UNK]"}
TOKENS = [
    "[CLS]",
    "the",
    "cat",
    "##s",
    "run",
    "##ning",
    "!",
    "[UNK]",
    "cat",
    "##nip",
    "cat",
    "[SEP]",
]
LOOKS = np.array([8, 1, 2, 3, 4, 5, 6, 7, 0.25, 0.5, 0.125, 9], np.float32)


def test_pieces_are_summed_and_special_tokens_left_out() -> None:
    assert list(word_weights(TOKENS, LOOKS, SPECIAL)) == [
        *(("the", 1), ("cats", 5), ("running", 9), ("!", 6)),
        *(("catnip", 0.75), ("cat", 0.125)),
    ]
    assert list(word_weights([], LOOKS[:0], SPECIAL)) == []


def test_stems_have_their_largest_word_without_stop_words_and_signs() -> None:
    expected = {"cat": 5, "run": 9, "catnip": 0.75}
    by_index = {abs(murmur3(stem.encode())): weight for stem, weight in expected.items()}
    found = sparse_vector(TOKENS, LOOKS, SPECIAL)
    assert found.indices.tolist() == sorted(by_index)
    values = [math.sqrt(math.log(1 + by_index[index])) for index in sorted(by_index)]
    assert found.values.tolist() == pytest.approx(values)


def test_a_text_of_stop_words_is_empty() -> None:
    found = sparse_vector(["[CLS]", "it", "is", ".", "[SEP]"], np.ones(5, np.float32), SPECIAL)
    assert len(found.indices) == len(found.values) == 0


def test_stop_words_are_nltks_without_apostrophes() -> None:
    assert len(STOP_WORDS) == 179 - 26
    assert not any("'" in word for word in STOP_WORDS)
    assert {"i", "not", "mightn", "yourselves"} <= STOP_WORDS
