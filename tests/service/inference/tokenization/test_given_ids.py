"""Token ids as they are, or with the tokenizer's special tokens: transformers is the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from model.artifact.manifest import TOKENIZER, Artifact
from model.config.encoder import EncoderConfig
from model.tokenization.tokenizer import load_tokenizer
from service.errors import Unprocessable
from service.inference.tokenization.file_tokenizer import FileTokenizer
from service.inference.tokenization.given_ids import IdReader
from tests.model.texts import TEXTS
from tests.model.tokenizer_folders import CLASSES, VOCAB_SIZE, write_tokenizer_folder
from tests.service.inference.tokenization.test_truncation import byte_pairs

BYTE_LEVEL = {"RobertaTokenizer", "Qwen2Tokenizer", "GemmaTokenizer", "TokenizersBackend"}
BYTE_LEVEL |= {"LlamaTokenizer"}
"""Classes that have a token for every byte, and so no unknown ones."""
TEXT = "What is Deep Learning?"


@pytest.fixture(scope="module")
def reference(small_checkpoint: Path) -> Any:
    return AutoTokenizer.from_pretrained(small_checkpoint)


@pytest.fixture(scope="module")
def reader(artifact: Artifact) -> IdReader:
    return IdReader(FileTokenizer(artifact.path(TOKENIZER)))


@pytest.mark.parametrize("special", [True, False])
def test_ids_with_and_without_special_tokens_are_the_same_text(
    reference: Any, reader: IdReader, special: bool
) -> None:
    given = reference(TEXT, add_special_tokens=special)["input_ids"]
    whole = reference(TEXT, return_special_tokens_mask=True)
    found = reader.complete("input[0]", given, None, "right")
    assert found.input_ids.tolist() == whole["input_ids"]
    assert found.segment_ids.tolist() == whole["token_type_ids"]
    assert list(found.special_tokens_mask) == whole["special_tokens_mask"]
    assert found.tokens == reference.convert_ids_to_tokens(whole["input_ids"])
    assert not found.truncated


@pytest.mark.parametrize("name", CLASSES)
def test_ids_of_every_class_are_computed_as_they_are(tmp_path: Path, name: str) -> None:
    """Of unknown tokens too, whose text is another when it is tokenised again."""
    folder = write_tokenizer_folder(tmp_path, name)
    config = EncoderConfig.model_construct(vocab_size=VOCAB_SIZE)
    load_tokenizer(folder, config, lowercase=False).save(str(path := tmp_path / "ours.json"))
    reader, reference = IdReader(FileTokenizer(path)), AutoTokenizer.from_pretrained(folder)
    around, unknown = set(reference("")["input_ids"]), 0
    for text in TEXTS:
        expected = reference(text)["input_ids"]
        assert reader.complete("input[0]", expected, None, "right").input_ids.tolist() == expected
        bare = reference(text, add_special_tokens=False)["input_ids"]
        if around.isdisjoint(bare):
            assert reader.complete("input[0]", bare, None, "right").input_ids.tolist() == expected
        else:  # the text spells a special token out
            with pytest.raises(Unprocessable, match="some special tokens of the model and not all"):
                reader.complete("input[0]", bare, None, "right")
        unknown += reference.unk_token_id in expected
    assert unknown > 5 or name in BYTE_LEVEL


@pytest.mark.parametrize("direction", ["right", "left"])
@pytest.mark.parametrize("most", [2, 3, 6, 7, 100])
def test_truncation_is_that_of_the_tokenizer(
    reference: Any, reader: IdReader, direction: Any, most: int
) -> None:
    given = reference(TEXT)["input_ids"]
    reference.truncation_side = direction
    expected = reference(TEXT, truncation=True, max_length=most)["input_ids"]
    found = reader.complete("input[0]", given, most, direction)
    assert (found.input_ids.tolist(), found.truncated) == (expected, len(expected) < len(given))


@pytest.mark.parametrize("given", [[101, 7592], [7592, 102], [7592, 101, 7592], [102, 7592, 101]])
def test_some_of_the_special_tokens_are_refused(reader: IdReader, given: list[int]) -> None:
    with pytest.raises(Unprocessable, match=r"input\[3\]: .* begin them with \[101\] .*\[102\]"):
        reader.complete("input[3]", given, None, "right")


def test_a_pair_keeps_the_special_token_between_its_texts(reference: Any, reader: IdReader) -> None:
    given = reference("a", "b")["input_ids"]
    assert reader.complete("input[0]", given, None, "right").input_ids.tolist() == given


def test_a_tokenizer_without_special_tokens_adds_none(tmp_path: Path) -> None:
    tokenizer = byte_pairs()
    tokenizer.post_processor = None
    tokenizer.save(str(path := tmp_path / TOKENIZER))
    ids = tokenizer.encode("the water").ids
    reader = IdReader(FileTokenizer(path))
    assert reader.complete("input[0]", ids, None, "right").input_ids.tolist() == ids
