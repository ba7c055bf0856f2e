"""Texts of a pair's tokens, by tokenizers themselves; words, by hand; merged maps, by loops."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from headscope import merge, words_of
from headscope.words import places_of
from tests.model.tokenizer_folders import CLASSES, write_tokenizer_folder

CASES = {
    "It didn't, of course.": "It didn't , of course .",
    "(open-source) code!?": "( open-source ) code ! ?",
    "unbelievably": "unbelievably",
    "$3.50 a-b": "$ 3.50 a-b",
    "... --": ". . . - -",
    "x  ##y": "x # # y",
    "東京タワー": "東 京 タワー",
    "食べた": "食 べた",
    "नमस्ते दुनिया": "नमस्त दुनिया",
    "e\u0301te\u0301 e": "e\u0301te e",
    "a\x00b c\u200dd": "a\x00b c\u200dd",
    "": "",
}
"""A combining mark at a word's end is in no token's offsets, and so in no word."""


@pytest.fixture(scope="module")
def tokenizer(minilm_checkpoint: Path) -> Any:
    return AutoTokenizer.from_pretrained(minilm_checkpoint)


def words(tokenizer: Any, *texts: str) -> list[Any]:
    encoding = tokenizer(*texts, return_offsets_mapping=True)
    tokens = tokenizer.convert_ids_to_tokens(encoding["input_ids"])
    found = words_of(tokens, encoding["offset_mapping"], encoding["token_type_ids"], texts)
    assert [token for word in found for token in word.tokens] == list(range(len(tokens)))
    return found


@pytest.mark.parametrize("text", CASES)
def test_words(tokenizer, text):
    first, *found, last = words(tokenizer, text)
    assert [word.text for word in found] == CASES[text].split(" " if text else None)
    assert (first.text, first.special, last.text, last.special) == ("[CLS]", True, "[SEP]", True)
    assert not any(word.special for word in found)


def test_words_of_a_pair_stay_in_their_texts(tokenizer):
    found = words(tokenizer, "cross it", "itself-same")
    assert [(word.text, word.segment) for word in found] == [
        ("[CLS]", 0),
        ("cross", 0),
        ("it", 0),
        ("[SEP]", 0),
        ("itself-same", 1),
        ("[SEP]", 1),
    ]


def test_tokens_side_by_side_of_two_texts_are_two_words():
    """As in a pair without a separator: the second text starts where the first ends."""
    found = words_of(["a", "b"], [(0, 1), (1, 2)], [0, 1], ["a", " b"])
    assert [word.tokens for word in found] == [[0], [1]]


def test_tokens_of_a_prompt_stand_alone():
    tokens, offsets = ["[CLS]", "query", ":", "hi", "[SEP]"], [(0, 0)] * 3 + [(0, 2), (0, 0)]
    found = words_of(tokens, offsets, [0] * 5, ["hi"])
    assert [word.text for word in found] == tokens
    assert [word.special for word in found] == [True, True, True, False, True]


@given(data=st.data(), size=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
def test_merged_maps_are_sums_over_targets_and_means_over_sources(data, size, seed):
    cuts = sorted(data.draw(st.sets(st.integers(1, size))) | {0, size})
    groups = [list(range(a, b)) for a, b in itertools.pairwise(cuts)]
    rng = np.random.default_rng(seed)
    maps = rng.dirichlet(np.ones(size), (2, 3, size)).astype(np.float32)
    merged = merge(maps, groups)
    assert merged.shape == (2, 3, len(groups), len(groups))
    np.testing.assert_allclose(merged.sum(axis=-1), 1, atol=1e-5)
    for place in np.ndindex(2, 3):
        for i, source in enumerate(groups):
            for j, target in enumerate(groups):
                shares = [sum(float(maps[place][q, k]) for k in target) for q in source]
                expected = sum(shares) / len(shares)
                assert merged[place][i, j] == pytest.approx(expected, abs=1e-6)


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


def written(folder: Path, name: str) -> Any:
    """Return a small tokenizer of a class."""
    return AutoTokenizer.from_pretrained(write_tokenizer_folder(folder / name, name))


def tokenized(tokenizer: Any, pair: tuple[str, str], **options: Any) -> tuple[Any, Any]:
    """Return the arguments of `places_of`, and each token's text by the tokenizer."""
    reported = tokenizer(*pair, return_offsets_mapping=True, return_token_type_ids=True, **options)
    encoding = reported.encodings[0]
    return (
        (encoding.tokens, encoding.offsets, reported["token_type_ids"], pair),
        encoding.sequence_ids,
    )


@pytest.mark.parametrize("name", sorted(CLASSES.keys() - WITHOUT_SEPARATORS))
def test_every_token_of_a_text_is_in_its_own(tmp_path, name):
    """Also for a text that is empty, truncated, or contains separators; and without segments."""
    made, segments = written(tmp_path, name), set()
    for pair, options in itertools.product(PAIRS, ({}, {"max_length": 9, "truncation": True})):
        (tokens, offsets, segment_ids, _), expected = tokenized(made, pair, **options)
        segments |= {*segment_ids}
        for ids in (segment_ids, [0] * len(tokens)):
            found = places_of(tokens, offsets, ids, pair)
            wrong = [
                token
                for token, place, text in zip(tokens, found, expected, strict=True)
                if text not in (None, place)
            ]
            assert not wrong, (pair, options, ids)
    assert segments == ({0} if name in OF_ONE_SEGMENT else {0, 1})


@pytest.mark.parametrize("name", sorted(WITHOUT_SEPARATORS))
@pytest.mark.parametrize("pair", [("The cat sat.", "it sat"), ("a cat", "  a cat"), ("🙂é", "a b")])
def test_without_separators_offsets_tell(tmp_path, name, pair):
    (tokens, offsets, _, _), expected = tokenized(written(tmp_path, name), pair)
    found = places_of(tokens, offsets, [0] * len(tokens), pair)
    assert [place for place, text in zip(found, expected, strict=True) if text is not None] == [
        text for text in expected if text is not None
    ]


def test_words_of_a_pair_of_robertas(tmp_path):
    pair = ("The cat", "sat, house")
    arguments, _ = tokenized(written(tmp_path, "RobertaTokenizer"), pair)
    found = [(word.text, word.segment) for word in words_of(*arguments) if not word.special]
    assert found == [("The", 0), ("cat", 0), ("sat", 1), (",", 1), ("house", 1)]
    second = places_of(*arguments).index(1)
    assert [token == "</s>" for token in arguments[0][second - 3 : second + 1]] == [
        *(False, True, True, False)
    ]


def test_one_text_has_no_second():
    offsets = [(0, 0), (0, 1), (0, 0), (0, 0)]
    assert places_of(["<s>", "a", "</s>", "</s>"], offsets, [0] * 4, ["a"]) == [0] * 4
