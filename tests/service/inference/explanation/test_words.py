"""Words of a text by hand, their tokens, and the warnings of texts."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from model.artifact.manifest import TOKENIZER, Artifact
from model.artifact.sentence import SentenceConfig
from service.inference.explanation.spans import split_words, tokens_of
from service.inference.timings import Warnings
from service.inference.tokenization.text import Text, places_of
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


@given(st.text(max_size=40))
def test_words_are_all_characters_but_spaces(text: str) -> None:
    words = split_words(text)
    assert all(start < end for start, end in words)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(words))
    kept = "".join(text[start:end] for start, end in words)
    assert kept == "".join(text.split())


def test_long_runs_take_no_time() -> None:
    for text in ("a!" * 20_000, "w" + "!" * 40_000, "w\u0301!" * 15_000, "\u0301" * 40_000):
        began = time.process_time()
        split_words(text)
        assert time.process_time() - began < 1


def pieces_of(text: str, tokenized: Text) -> list[tuple[str, list[str]]]:
    """Return each word with its tokens."""
    words = split_words(text)
    return [
        (text[slice(*word)], [tokenized.tokens[i] for i in tokens])
        for word, tokens in zip(words, tokens_of(words, tokenized), strict=True)
    ]


def test_tokens_of_words(tokenizer: TextTokenizer) -> None:
    text = "Don't pay\x00 sub-words; 東京"
    (found,) = tokenizer.tokenize([text], Options())
    assert pieces_of(text, found) == [
        ("Don't", ["don", "'", "t"]),
        ("pay\x00", ["pay"]),
        ("sub-words", ["sub", "-", "words"]),
        (";", [";"]),
        ("東", ["東"]),
        ("京", ["京"]),
    ]


def test_words_without_tokens(tokenizer: TextTokenizer) -> None:
    """Dropped characters and truncated words have no tokens."""
    text = "\x00 one \x00\x00 " + "two " * 40
    (found,) = tokenizer.tokenize([text], Options(truncate=True))
    owned = tokens_of(split_words(text), found)
    assert len(owned) == 43
    assert [word for word, tokens in enumerate(owned) if tokens] == [1, *range(3, 32)]
    (nothing,) = tokenizer.tokenize([""], Options())
    assert tokens_of([], nothing) == []


def test_a_token_of_several_words_and_tokens_of_none(tokenizer: TextTokenizer) -> None:
    (found,) = tokenizer.tokenize(["a b"], Options())
    made = replace(
        found.in_arrays(),
        tokens=["<s>", "p", "\u2581", "東京", "は", "!", "</s>"],
        places=places_of([(0, 0), (0, 0), (0, 1), (1, 3), (3, 4), (3, 5), (0, 0)]),
        special_tokens_mask=[1, 1, 0, 0, 0, 0, 1],
    )
    assert pieces_of(" 東京は!", made) == [
        ("東", ["東京"]),
        ("京", ["東京"]),
        ("は", ["は", "!"]),
        ("!", ["!"]),
    ]


KNOWN, UNKNOWN = "water ", "\U0001f9ff "
TEXTS = [
    KNOWN * 3,
    KNOWN * 40,
    UNKNOWN * 3,
    KNOWN * 9 + UNKNOWN,  # a tenth
    KNOWN * 8 + UNKNOWN,  # more
    "",
]


@pytest.fixture(scope="module")
def warning_tokenizer(artifact: Artifact) -> TextTokenizer:
    sentence = SentenceConfig(max_length=16, prompts={"query": UNKNOWN * 3, "none": ""})
    return TextTokenizer(artifact.path(TOKENIZER), sentence, Limits(16, 1000))


def test_texts_are_counted_by_transformers_tokens(
    warning_tokenizer: TextTokenizer, small_checkpoint: Path
) -> None:
    reference = AutoTokenizer.from_pretrained(small_checkpoint)
    whole = [reference(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    unknown = [ids[:14].count(reference.unk_token_id) / max(1, len(ids[:14])) for ids in whole]
    found = Warnings.of(warning_tokenizer.tokenize(TEXTS, Options(truncate=True)), prompt_missing=2)
    expected = sum(len(ids) > 14 for ids in whole), sum(share > 0.1 for share in unknown)
    assert expected == (1, 2)
    assert (found.truncated, found.unknown_tokens, found.prompt_missing) == (*expected, 2)


def test_the_tokens_of_a_prompt_are_not_the_texts(warning_tokenizer: TextTokenizer) -> None:
    (text,) = warning_tokenizer.tokenize([KNOWN * 3], Options(prompt_name="query"))
    assert text.tokens.count("[UNK]") == 3
    assert not text.mostly_unknown


def test_a_text_that_is_cut_further_is_counted_by_what_is_left(
    warning_tokenizer: TextTokenizer,
) -> None:
    (text,) = warning_tokenizer.tokenize([KNOWN * 6 + UNKNOWN * 6], Options())
    assert text.mostly_unknown
    cut = text.in_arrays().of([*range(7), text.size - 1])
    assert Warnings.of([cut]) == Warnings(truncated=1)


@pytest.mark.parametrize(
    ("prompts", "default", "name", "lacks"),
    [
        ({"query": "q: "}, None, None, True),
        ({"query": "q: "}, None, "query", False),
        ({"query": "q: "}, None, "", False),
        ({"query": "q: "}, "query", None, False),
        ({"query": "", "document": ""}, None, None, False),
        ({}, None, None, False),
    ],
)
def test_a_prompt_is_missing_where_none_is_chosen(
    artifact: Artifact,
    prompts: dict[str, str],
    default: str | None,
    name: str | None,
    lacks: bool,
) -> None:
    sentence = SentenceConfig(max_length=16, prompts=prompts, default_prompt_name=default)
    one = TextTokenizer(artifact.path(TOKENIZER), sentence, Limits(16, 1000))
    options = Options(prompt_name=name)
    assert (one.expects_prompt and options.unprompted) == lacks
    one.tokenize(["it"], options)


def test_headers_hold_the_numbers_that_are_not_0() -> None:
    warnings = Warnings(2, 0, 1) + Warnings(1, 0, 0)
    assert warnings.headers() == {"x-truncated": "3", "x-unknown-tokens": "1"}
    assert Warnings.of_headers(warnings.headers()) == warnings
    assert Warnings.of_headers({}) == Warnings()
    assert warnings.sentences() == [
        "3 texts were cut to the most tokens",
        "1 text was computed with more than a tenth of unknown tokens",
    ]
