"""The words of a text and their weights, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

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
    by_index = {1_751_422_759: 5, 243_905_464: 9, 20_642_417: 0.75}  # cat, run, catnip
    found = sparse_vector(TOKENS, LOOKS, SPECIAL)
    assert found.indices.tolist() == sorted(by_index)
    values = [math.sqrt(math.log(1 + by_index[index])) for index in sorted(by_index)]
    assert found.values.tolist() == pytest.approx(values)


@pytest.mark.parametrize(
    ("word", "index"),
    [
        ("adding", 1_271_291_307),
        ("university", 482_863_870),
        ("international", 2_139_336_747),
        ("pasting", 1_328_124_297),
    ],
)
def test_stems_are_those_of_indices_that_exist(word: str, index: int) -> None:
    """Snowball 3 stems these words differently than its version 2, which fastembed uses."""
    assert sparse_vector([word], np.ones(1, np.float32), SPECIAL).indices.tolist() == [index]


def test_a_text_of_stop_words_is_empty() -> None:
    found = sparse_vector(["[CLS]", "it", "is", ".", "[SEP]"], np.ones(5, np.float32), SPECIAL)
    assert len(found.indices) == len(found.values) == 0


def test_stop_words_are_nltks_without_apostrophes() -> None:
    assert len(STOP_WORDS) == 179 - 26
    assert not any("'" in word for word in STOP_WORDS)
    assert {"i", "not", "mightn", "yourselves"} <= STOP_WORDS
