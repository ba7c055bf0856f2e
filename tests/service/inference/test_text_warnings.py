"""Counts of texts by warning, against transformers' truncation and unknown tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from model.artifact.manifest import TOKENIZER, Artifact
from model.artifact.sentence import SentenceConfig
from service.inference.text_warnings import Warnings
from service.inference.tokenization.tokenizer import Limits, Options, TextTokenizer
from service.inference.tokenization.truncation import shortened

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
def tokenizer(artifact: Artifact) -> TextTokenizer:
    sentence = SentenceConfig(max_length=16, prompts={"query": UNKNOWN * 3, "none": ""})
    return TextTokenizer(artifact.path(TOKENIZER), sentence, Limits(16, 1000))


def test_texts_are_counted_by_transformers_tokens(
    tokenizer: TextTokenizer, small_checkpoint: Path
) -> None:
    reference = AutoTokenizer.from_pretrained(small_checkpoint)
    whole = [reference(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    unknown = [ids[:14].count(reference.unk_token_id) / max(1, len(ids[:14])) for ids in whole]
    found = Warnings.of(tokenizer.tokenize(TEXTS, Options(truncate=True)), prompt_missing=2)
    expected = sum(len(ids) > 14 for ids in whole), sum(share > 0.1 for share in unknown)
    assert expected == (1, 2)
    assert (found.truncated, found.unknown_tokens, found.prompt_missing) == (*expected, 2)


def test_the_tokens_of_a_prompt_are_not_the_texts(tokenizer: TextTokenizer) -> None:
    (text,) = tokenizer.tokenize([KNOWN * 3], Options(prompt_name="query"))
    assert text.tokens.count("[UNK]") == 3
    assert not text.mostly_unknown


def test_a_text_that_is_cut_further_is_counted_by_what_is_left(tokenizer: TextTokenizer) -> None:
    (text,) = tokenizer.tokenize([KNOWN * 6 + UNKNOWN * 6], Options())
    assert text.mostly_unknown
    cut = shortened(text, 8, "right")
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
    assert one.lacks_prompt(options) == lacks
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
