"""Texts cut to fewer tokens, exactly as transformers' tokenizers cut them."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from model.artifact.manifest import TOKENIZER, Artifact
from model.artifact.sentence import SentenceConfig
from service.errors import InputTooLong
from service.inference.tokenization.tokenizer import Limits, Options, TextTokenizer
from service.inference.tokenization.truncation import Direction, shorten, shortened

LONG = "the cat sat on the mat and looked at another one"
PAIRS = [(LONG, "a b c"), ("a b c", LONG), (LONG, LONG), ("", LONG)]


@pytest.mark.parametrize("direction", ["right", "left"])
def test_texts_and_pairs_are_cut_as_transformers_does(
    artifact: Artifact, small_checkpoint: Path, direction: Direction
) -> None:
    reference = AutoTokenizer.from_pretrained(small_checkpoint, truncation_side=direction)
    limits = Limits(max_tokens=64, max_characters=1000)
    tokenizer = TextTokenizer(artifact.path(TOKENIZER), SentenceConfig(max_length=64), limits)
    inputs = [LONG, *PAIRS]
    for text, given in zip(
        tokenizer.tokenize(inputs, Options(True, direction)), inputs, strict=True
    ):
        for size in range(5, len(text.input_ids) + 2):
            found = shortened(text, size, direction)
            parts = [given] if isinstance(given, str) else given
            expected = reference(
                *parts, truncation=True, max_length=size, return_offsets_mapping=True
            )
            assert found.input_ids.tolist() == expected["input_ids"]
            assert found.segment_ids.tolist() == expected["token_type_ids"]
            assert found.offsets == expected["offset_mapping"]
            assert found.tokens == expected.tokens()
            assert found.truncated == (size < len(text.input_ids))
    with pytest.raises(InputTooLong, match="2 tokens leave no room beside the 2 special ones"):
        shortened(text := tokenizer.tokenize([LONG], Options())[0], 2, direction)
    assert shortened(text, len(text.input_ids), direction) is text


@pytest.mark.anyio
async def test_a_list_is_cut_in_its_place(artifact: Artifact) -> None:
    limits = Limits(max_tokens=64, max_characters=1000)
    tokenizer = TextTokenizer(artifact.path(TOKENIZER), SentenceConfig(max_length=64), limits)
    texts = tokenizer.tokenize([LONG, "a"], Options())
    await shorten(texts, 5, "left")
    assert [text.tokens for text in texts] == [
        ["[CLS]", "at", "another", "one", "[SEP]"],
        ["[CLS]", "a", "[SEP]"],
    ]
