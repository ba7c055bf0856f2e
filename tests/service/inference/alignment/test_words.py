"""Words of a text, by hand, and their tokens, by a real tokenizer and by made-up ones."""

from __future__ import annotations

import itertools
import time
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.artifact.manifest import TOKENIZER, Artifact
from service.inference.alignment.words import AlignedText, Split, aligned_text, split_words
from service.inference.tokenization.tokenized import TokenizedText, places_of
from service.inference.tokenization.tokenizer import Limits, Options, TextTokenizer


@pytest.fixture(scope="module")
def tokenizer(artifact: Artifact) -> TextTokenizer:
    limits = Limits(max_tokens=32, max_characters=10_000)
    return TextTokenizer(artifact.path(TOKENIZER), artifact.manifest.sentence, limits)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't stop, it's 3.14... (really)!", "Don't stop , it's 3.14 ... ( really ) !"),
        ("l'homme d'État a dit: «non»", "l'homme d'État a dit : « non »"),
        ("東京はTokyo、日々", "東 京 は Tokyo 、 日 々"),
        ("서울은 수도다.", "서울은 수도다 ."),
        ("हिन्दी में", "हिन्दी में"),
        ("e\u0301te\u0301 \u2764\ufe0f!?! --", "e\u0301te\u0301 \u2764\ufe0f ! ? ! --"),
        ("open-source and/or", "open-source and/or"),
        (" \t\n", ""),
        ("", ""),
    ],
)
def test_words_by_hand(text: str, words: str) -> None:
    assert [text[start:end] for start, end in split_words(text)] == words.split()


def test_spaces_alone_may_part_words() -> None:
    assert split_words(" a, (b)\u3000東京 ", "spaces") == [(1, 3), (4, 7), (8, 10)]


@given(st.text(max_size=40), st.sampled_from(["punctuation", "spaces"]))
def test_words_are_all_characters_but_spaces(text: str, split: Split) -> None:
    words = split_words(text, split)
    assert all(start < end for start, end in words)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(words))
    kept = "".join(text[start:end] for start, end in words)
    assert kept == "".join(text.split())


def test_long_runs_take_no_time() -> None:
    for text in ("a!" * 20_000, "w" + "!" * 40_000, "w\u0301!" * 15_000, "\u0301" * 40_000):
        began = time.process_time()
        split_words(text)
        assert time.process_time() - began < 1


def pieces_of(one: AlignedText, tokenized: TokenizedText) -> list[tuple[str, list[str]]]:
    """Return each word that has tokens, with its tokens."""
    parts = np.split(one.tokens[one.pieces], one.starts[1:])
    return [
        (one.text[slice(*one.words[word])], [tokenized.tokens[i] for i in part])
        for word, part in zip(one.worded, parts, strict=True)
    ]


def test_tokens_of_words(tokenizer: TextTokenizer) -> None:
    text = "Don't pay\x00 sub-words; 東京"
    (found,) = tokenizer.tokenize([text], Options())
    one = aligned_text(text, found, "punctuation")
    assert pieces_of(one, found) == [
        ("Don't", ["don", "'", "t"]),
        ("pay\x00", ["pay"]),
        ("sub-words", ["sub", "-", "words"]),
        (";", [";"]),
        ("東", ["東"]),
        ("京", ["京"]),
    ]
    assert one.spread == 1
    assert one.tokens.tolist() == [*range(1, len(found.tokens) - 1)]


def test_words_without_tokens(tokenizer: TextTokenizer) -> None:
    """Dropped characters and truncated words have no tokens."""
    text = "\x00 one \x00\x00 " + "two " * 40
    (found,) = tokenizer.tokenize([text], Options(truncate=True))
    one = aligned_text(text, found, "punctuation")
    assert len(one.words) == 43
    assert one.worded.tolist() == [1, *range(3, 32)]
    (nothing,) = tokenizer.tokenize([""], Options())
    empty = aligned_text("", nothing, "punctuation")
    assert (empty.words.tolist(), empty.tokens.size, empty.starts.size) == ([], 0, 0)
    assert empty.spread == 1


def test_a_token_of_several_words_and_tokens_of_none(tokenizer: TextTokenizer) -> None:
    (found,) = tokenizer.tokenize(["a b"], Options())
    made = replace(
        found,
        tokens=["<s>", "p", "\u2581", "東京", "は", "!", "</s>"],
        places=places_of([(0, 0), (0, 0), (0, 1), (1, 3), (3, 4), (3, 5), (0, 0)]),
        special_tokens_mask=[1, 1, 0, 0, 0, 0, 1],
    )
    one = aligned_text(" 東京は!", made, "punctuation")
    assert pieces_of(one, made) == [
        ("東", ["東京"]),
        ("京", ["東京"]),
        ("は", ["は", "!"]),
        ("!", ["!"]),
    ]
    assert (one.tokens.tolist(), one.spread) == ([3, 4, 5], 2)
    assert pieces_of(aligned_text(" 東京は!", made, "spaces"), made) == [
        ("東京は!", ["東京", "は", "!"])
    ]


def test_words_are_kept_in_few_bytes(tokenizer: TextTokenizer) -> None:
    """Each punctuation mark is a word, and words behind the truncation are kept."""
    text = ".!" * 4_000
    (found,) = tokenizer.tokenize([text], Options(truncate=True))
    aligned_text(text[:9], found, "punctuation")
    tracemalloc.start()
    one = aligned_text(text, found, "punctuation")
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(one.words) == 8_000
    assert kept < 30 * 8_000, "a list of pairs takes 120 each"
