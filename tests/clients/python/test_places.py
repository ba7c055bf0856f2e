"""Assignment of a pair's tokens to its texts, against the tokenizers' own."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from transformers import AutoTokenizer

from headscope import words_of
from headscope.words import places_of
from tests.model.tokenizer_folders import CLASSES, write_tokenizer_folder

TEXTS = ("The cat sat.", "", "  a", "🙂é", "a", "it sat </s> and [SEP] on", "東京 tower")
PAIRS = list(itertools.product(TEXTS, TEXTS))
OF_ONE_SEGMENT = {
    *("RobertaTokenizer", "XLMRobertaTokenizer", "MPNetTokenizer", "CamembertTokenizer"),
    "T5Tokenizer",
}
WITHOUT_SEPARATORS = {
    "Qwen2Tokenizer",
    "GemmaTokenizer",
    "MBartTokenizer",
    "MBart50Tokenizer",
    "NllbTokenizer",
    "LlamaTokenizer",
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    def of(name: str) -> Any:
        folder = tmp_path_factory.mktemp(name)
        return AutoTokenizer.from_pretrained(write_tokenizer_folder(folder, name))

    return of


def tokenized(tokenizer: Any, pair: tuple[str, str], **options: Any) -> tuple[Any, Any]:
    """Return the arguments of `places_of`, and each token's text by the tokenizer."""
    reported = tokenizer(*pair, return_offsets_mapping=True, return_token_type_ids=True, **options)
    encoding = reported.encodings[0]
    return (
        (encoding.tokens, encoding.offsets, reported["token_type_ids"], pair),
        encoding.sequence_ids,
    )


@pytest.mark.parametrize("name", sorted(CLASSES.keys() - WITHOUT_SEPARATORS))
def test_every_token_of_a_text_is_in_its_own(tokenizer, name):
    """Also for a text that is empty, truncated, or contains separators; and without segments."""
    made, segments = tokenizer(name), set()
    for pair, options in itertools.product(PAIRS, ({}, {"max_length": 9, "truncation": True})):
        (tokens, offsets, segment_ids, _), expected = tokenized(made, pair, **options)
        segments |= {*segment_ids}
        for given in (segment_ids, [0] * len(tokens)):
            found = places_of(tokens, offsets, given, pair)
            wrong = [
                token
                for token, place, text in zip(tokens, found, expected, strict=True)
                if text not in (None, place)
            ]
            assert not wrong, (pair, options, given)
    assert segments == ({0} if name in OF_ONE_SEGMENT else {0, 1})


@pytest.mark.parametrize("name", sorted(WITHOUT_SEPARATORS))
@pytest.mark.parametrize("pair", [("The cat sat.", "it sat"), ("a cat", "  a cat"), ("🙂é", "a b")])
def test_without_separators_offsets_tell(tokenizer, name, pair):
    (tokens, offsets, _, _), expected = tokenized(tokenizer(name), pair)
    found = places_of(tokens, offsets, [0] * len(tokens), pair)
    assert [place for place, text in zip(found, expected, strict=True) if text is not None] == [
        text for text in expected if text is not None
    ]


def test_words_of_a_pair_of_robertas(tokenizer):
    pair = ("The cat", "sat, house")
    arguments, _ = tokenized(tokenizer("RobertaTokenizer"), pair)
    found = [(word.text, word.segment) for word in words_of(*arguments) if not word.special]
    assert found == [("The", 0), ("cat", 0), ("sat", 1), (",", 1), ("house", 1)]
    second = places_of(*arguments).index(1)
    assert [token == "</s>" for token in arguments[0][second - 3 : second + 1]] == [
        *(False, True, True, False)
    ]


def test_one_text_has_no_second():
    offsets = [(0, 0), (0, 1), (0, 0), (0, 0)]
    assert places_of(["<s>", "a", "</s>", "</s>"], offsets, [0] * 4, ["a"]) == [0] * 4
