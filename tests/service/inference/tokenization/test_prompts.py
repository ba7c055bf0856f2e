"""Prompts: their tokens, and offsets that still count in the caller's own string."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers.base.modules import Transformer

from model.artifact.manifest import TOKENIZER, Artifact
from model.artifact.sentence import SentenceConfig
from service.errors import InputTooLong, Unprocessable
from service.inference.tokenization.tokenized import TokenizedText
from service.inference.tokenization.tokenizer import Limits, Options, TextTokenizer

PROMPTS = {"query": "query: ", "cut": "quer", "accents": "É\u0301tude: ", "empty": ""}


@pytest.fixture(scope="module")
def tokenizer(artifact: Artifact) -> TextTokenizer:
    sentence = SentenceConfig(max_length=16, prompts=PROMPTS)
    return TextTokenizer(artifact.path(TOKENIZER), sentence, Limits(16, 60))


def one(tokenizer: TextTokenizer, text: Any, prompt: str | None, **options: Any) -> TokenizedText:
    (found,) = tokenizer.tokenize([text], Options(prompt_name=prompt, **options))
    return found


def test_ids_are_those_of_the_prefixed_text(tokenizer: TextTokenizer) -> None:
    found = one(tokenizer, "two words", "query")
    plain = one(tokenizer, "query: two words", None)
    np.testing.assert_array_equal(found.input_ids, plain.input_ids)
    np.testing.assert_array_equal(found.segment_ids, plain.segment_ids)
    assert found.tokens == ["[CLS]", "query", ":", "two", "words", "[SEP]"]


def test_offsets_are_the_callers(tokenizer: TextTokenizer) -> None:
    found = one(tokenizer, "two words", "query")
    assert found.offsets == [(0, 0), (0, 0), (0, 0), (0, 3), (4, 9), (0, 0)]
    assert found.prompt_tokens == 3  # [CLS], query, :
    assert list(found.special_tokens_mask) == [1, 1, 1, 0, 0, 1]


def test_code_points_are_counted_not_bytes(tokenizer: TextTokenizer) -> None:
    text = "naïve 😀 café"
    found = one(tokenizer, text, "accents")
    words = [text[start:end] for start, end in found.offsets[found.prompt_tokens : -1]]
    assert "".join(words).replace(" ", "") == "naïve😀café"
    assert set(found.offsets[: found.prompt_tokens]) == {(0, 0)}


def test_the_second_segment_has_no_prompt(tokenizer: TextTokenizer) -> None:
    found = one(tokenizer, ("two words", "and more"), "query")
    plain = one(tokenizer, ("query: two words", "and more"), None)
    assert found.tokens == plain.tokens
    assert found.segment_ids.tolist() == [0] * 6 + [1] * 3
    assert found.offsets[-3:] == [(0, 3), (4, 8), (0, 0)]
    assert found.prompt_tokens == 3


def test_a_prompt_that_ends_in_the_middle_of_a_word(tokenizer: TextTokenizer) -> None:
    found = one(tokenizer, "y this", "cut")
    assert found.tokens == ["[CLS]", "query", "this", "[SEP]"]
    assert found.offsets == [(0, 0), (0, 1), (2, 6), (0, 0)]
    assert found.prompt_tokens == 3  # ids of the prompt alone, which differ from the text's


@pytest.mark.parametrize("prompt", [None, "empty"])
def test_no_prompt_no_prompt_tokens(tokenizer: TextTokenizer, prompt: str | None) -> None:
    found = one(tokenizer, "two words", prompt)
    assert found.prompt_tokens == 0
    assert found.offsets == [(0, 0), (0, 3), (4, 9), (0, 0)]


def test_an_empty_text_is_the_prompt_alone(tokenizer: TextTokenizer) -> None:
    found = one(tokenizer, "", "query")
    assert found.tokens == ["[CLS]", "query", ":", "[SEP]"]
    assert found.offsets == [(0, 0)] * 4
    assert found.prompt_tokens == 3


def test_tokens_of_a_prompt_are_counted_as_sentence_transformers_does(
    artifact: Artifact, tokenizer: TextTokenizer, small_checkpoint: Path
) -> None:
    theirs = Transformer(str(small_checkpoint))
    for name, prompt in PROMPTS.items():
        if prompt:
            expected = theirs.preprocess(["two words"], prompt=prompt)["prompt_length"]
            assert one(tokenizer, "two words", name).prompt_tokens == expected


def test_a_prompt_that_fills_the_limit_leaves_one_token_to_the_pooling(
    artifact: Artifact,
) -> None:
    sentence = SentenceConfig(max_length=4, prompts=PROMPTS, include_prompt=False)
    tokenizer = TextTokenizer(artifact.path(TOKENIZER), sentence, Limits(3, 60))
    found = one(tokenizer, "two words", "query", truncate=True)
    assert (len(found.tokens), found.first_pooled(sentence)) == (3, 2)


def test_the_checkpoints_default_goes_before_texts_that_name_none(artifact: Artifact) -> None:
    sentence = SentenceConfig(max_length=16, prompts=PROMPTS, default_prompt_name="query")
    tokenizer = TextTokenizer(artifact.path(TOKENIZER), sentence, Limits(16, 60))
    assert one(tokenizer, "it", None).tokens == ["[CLS]", "query", ":", "it", "[SEP]"]
    assert one(tokenizer, "it", "cut").tokens[1:3] == one(tokenizer, "querit", "").tokens[1:3]
    assert one(tokenizer, "it", "").tokens == ["[CLS]", "it", "[SEP]"]
    assert one(tokenizer, "it", "").prompt_tokens == 0


def test_an_empty_name_is_no_prompt_where_there_is_no_default(tokenizer: TextTokenizer) -> None:
    """The empty name requests no prompt, so that none is missing."""
    assert one(tokenizer, "it", "").tokens == ["[CLS]", "it", "[SEP]"]


def test_the_prompt_counts_for_the_limit_and_for_the_cut(tokenizer: TextTokenizer) -> None:
    assert len(one(tokenizer, "it " * 12, "query").tokens) == 16
    with pytest.raises(InputTooLong, match="17 tokens; at most 16"):
        one(tokenizer, "it " * 13, "query")
    right = one(tokenizer, "it " * 12 + "end", "query", truncate=True)
    assert right.prompt_tokens == 3
    assert "end" not in right.tokens
    left = one(tokenizer, "it " * 12 + "end", "query", truncate=True, direction="left")
    assert left.tokens[:3] == ["[CLS]", ":", "it"]
    assert left.prompt_tokens == 2
    assert left.offsets[-2] == (36, 39)


def test_a_left_cut_can_take_the_whole_prompt(tokenizer: TextTokenizer) -> None:
    found = one(tokenizer, "it " * 15, "query", truncate=True, direction="left")
    assert found.prompt_tokens == 0
    assert found.offsets[1] == (3, 5)


def test_the_prompt_does_not_count_as_the_callers_characters(tokenizer: TextTokenizer) -> None:
    assert one(tokenizer, "it".ljust(60), "query").prompt_tokens == 3


def test_an_unknown_prompt_names_the_known_ones(tokenizer: TextTokenizer) -> None:
    with pytest.raises(Unprocessable, match=r"names: accents, cut, empty, query$") as refused:
        one(tokenizer, "some", "canary")
    assert "canary" not in str(refused.value)


def test_a_model_without_prompts_says_so(artifact: Artifact) -> None:
    plain = TextTokenizer(artifact.path(TOKENIZER), artifact.manifest.sentence, Limits(16, 60))
    for name in ("query", ""):
        with pytest.raises(Unprocessable, match="names: none"):
            one(plain, "some", name)
