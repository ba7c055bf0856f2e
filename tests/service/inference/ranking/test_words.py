"""Distinct words of a document, and their shares."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from model.artifact.manifest import TOKENIZER, Artifact
from service.inference.ranking.words import Word, distinct_words, word_shares
from service.inference.tokenization.tokenizer import Limits, Options, TextTokenizer


@pytest.fixture(scope="module")
def tokenizer(artifact: Artifact) -> TextTokenizer:
    path: Path = artifact.path(TOKENIZER)
    return TextTokenizer(path, artifact.manifest.sentence, Limits(9_000, 99_000))


def test_a_word_has_all_its_occurrences(tokenizer: TextTokenizer) -> None:
    text = "The cat, the unbelievably fat CAT"
    (tokenized,) = tokenizer.tokenize([text], Options())
    words = {word.text: word for word in distinct_words(text, tokenized)}
    assert [*words] == ["the", "cat", ",", "unbelievably", "fat"]
    assert words["cat"].spans == [(4, 7), (30, 33)]
    assert [tokenized.tokens[token] for token in words["the"].tokens] == ["the", "the"]
    pieces = [tokenized.tokens[token] for token in words["unbelievably"].tokens]
    assert "".join(piece.removeprefix("##") for piece in pieces) == "unbelievably"
    shares = np.arange(len(tokenized.tokens), dtype=np.float32)
    expected = [sum(word.tokens) for word in words.values()]
    np.testing.assert_allclose(word_shares([*words.values()], shares), expected)


def test_a_share_of_two_words_is_divided() -> None:
    words = [Word("a", tokens=[0, 1]), Word("b", tokens=[1])]
    found = word_shares(words, np.array([1.0, 0.5], np.float32))
    np.testing.assert_allclose(found, [1.25, 0.25])


def test_one_word_many_times_takes_linear_time(tokenizer: TextTokenizer) -> None:
    text = "cat " * 8_000
    (tokenized,) = tokenizer.tokenize([text], Options())
    began = time.process_time()
    (word,) = distinct_words(text, tokenized)
    assert len(word.tokens) == 8_000
    assert time.process_time() - began < 2  # a set of all tokens for each occurrence takes longer
