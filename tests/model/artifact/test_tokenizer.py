from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import XLMRobertaTokenizer

from model.artifact.tokenizer import read_tokenizer
from tests.model.tokenizer_folders import CLASSES, LINES, write_tokenizer_folder

CHARACTERS = [chr(0x4E00 + i) for i in range(100)]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


@pytest.fixture
def ambiguous() -> Tokenizer:
    """Return pieces of each character once and twice, and of a word before them."""
    pieces = ["▁w", *CHARACTERS, *(2 * character for character in CHARACTERS)]
    vocabulary = [(token, 0.0) for token in SPECIAL]
    numbers = random.Random(0)
    vocabulary += [(piece, numbers.uniform(-16, -9)) for piece in pieces]
    tokenizer = XLMRobertaTokenizer(vocab=vocabulary)._tokenizer
    assert isinstance(tokenizer, Tokenizer)
    return tokenizer


def ties(tokenizer: Tokenizer) -> list[list[int]]:
    texts = [
        word + number * character
        for word in ("", "w")
        for character in CHARACTERS
        for number in (3, 7)
    ]
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def vocabulary(tokenizer: Tokenizer) -> list[list[float]]:
    content: list[list[float]] = json.loads(tokenizer.to_str())["model"]["vocab"]
    return content


def test_scores_are_read_as_they_were_written(ambiguous: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    ambiguous.save(str(path))
    assert vocabulary(read_tokenizer(path)) == vocabulary(ambiguous)
    assert ties(read_tokenizer(path)) == ties(ambiguous)
    assert vocabulary(Tokenizer.from_file(str(path))) != vocabulary(ambiguous)
    assert ties(Tokenizer.from_file(str(path))) != ties(ambiguous)


@pytest.mark.parametrize("unknown", [None, 0])
def test_the_rest_of_the_model_is_kept(tmp_path: Path, unknown: int | None) -> None:
    pieces = [("<unk>", 0.0), ("a", -1.0), ("<0x62>", -2.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unknown, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert read_tokenizer(tmp_path / "tokenizer.json").to_str() == tokenizer.to_str()


@pytest.mark.parametrize("name", CLASSES)
def test_any_class_reads_as_it_was_saved(tmp_path: Path, name: str) -> None:
    path = write_tokenizer_folder(tmp_path, name) / "tokenizer.json"
    found, expected = read_tokenizer(path), Tokenizer.from_file(str(path))
    assert type(found.model) is type(expected.model)
    assert found.get_vocab() == expected.get_vocab()
    assert all(found.encode(line).ids for line in LINES[20:40])
