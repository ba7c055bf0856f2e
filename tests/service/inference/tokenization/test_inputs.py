"""Texts by their token ids, against transformers, and the counts of inputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from model.artifact.manifest import TOKENIZER, Artifact
from service.errors import InputTooLong, Unprocessable
from service.inference.tokenization.inputs import Picture, TokenIds, characters, texts_only
from service.inference.tokenization.tokenizer import Limits, Options, TextTokenizer


@pytest.fixture(scope="module")
def tokenizer(artifact: Artifact) -> TextTokenizer:
    return TextTokenizer(artifact.path(TOKENIZER), artifact.manifest.sentence, Limits(16, 400))


def test_characters_of_each_form() -> None:
    inputs = ["four", ("one", "two"), TokenIds((1, 2)), Picture(b"a file")]
    assert characters(inputs) == 4 + 6 + 2 + 6


def test_a_model_of_texts_names_the_picture_that_it_refuses() -> None:
    assert texts_only(["a text", ("a", "pair")], "[{}]".format) == ["a text", ("a", "pair")]
    with pytest.raises(Unprocessable, match=r"documents\[1\] is a picture, and only texts"):
        texts_only(["a text", Picture(b"a file")], "documents[{}]".format)


def test_ids_are_decoded_and_encoded_again(
    tokenizer: TextTokenizer, small_checkpoint: Path
) -> None:
    """No special tokens are put around them: they have their own, or none."""
    reference = AutoTokenizer.from_pretrained(small_checkpoint)
    for special in (True, False):
        ids = reference("What is Deep Learning?", add_special_tokens=special)["input_ids"]
        read, text = tokenizer.tokenize([TokenIds(tuple(ids)), "a text"], Options())
        assert read.input_ids.tolist() == ids
        assert text.input_ids.tolist() == reference("a text")["input_ids"]
        (cut,) = tokenizer.tokenize([TokenIds(tuple(ids * 9))], Options(truncate=True))
        assert cut.input_ids.tolist() == (ids * 9)[:16]
        assert cut.truncated


def test_ids_that_are_no_tokens_or_too_many_are_refused(tokenizer: TextTokenizer) -> None:
    for wrong in (-1, 30522):
        message = rf"inputs\[1\] has the token id {wrong}: ids are 0"
        with pytest.raises(Unprocessable, match=message):
            tokenizer.tokenize(["fits", TokenIds((101, wrong))], Options())
    with pytest.raises(InputTooLong, match=r"has 20 tokens; at most 16 fit"):
        tokenizer.tokenize([TokenIds((1037,) * 20)], Options())
    for many in ((1037,) * 401, (7592,) * 99):  # too many ids; too many characters of "hello"
        with pytest.raises(InputTooLong, match="characters; at most 400"):
            tokenizer.tokenize([TokenIds(many)], Options(truncate=True))
