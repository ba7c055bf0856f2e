"""Inputs and targets of an encoder–decoder: transformers' AutoTokenizer is the oracle."""

from __future__ import annotations

import shutil
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from model.artifact.manifest import TARGET_TOKENIZER, TOKENIZER
from model.artifact.sentence import SentenceConfig
from model.errors import ArtifactError
from model.families.registry import parse_config
from model.tokenization.piece_vocabulary import read_ids
from model.tokenization.tokenizer import load_target_tokenizer, load_tokenizer
from service.errors import InputTooLong, Unprocessable
from service.inference.tokenization.file_tokenizer import (
    FileTokenizer,
    closing_ids,
    shared_tokenizer,
)
from service.inference.tokenization.inputs import TokenIds
from service.inference.tokenization.tokenizer import Limits, Options, TextTokenizer
from tests.model.checkpoints import TINY
from tests.model.piece_folders import write_marian

TEXTS = ["the ship carries water", "", "The Straße isn't in the riverhouse", "<unk> </s> été мир"]
NAMED = Options(naming="targets[{}]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return Marian's files, which lack ids of some pieces, and the served tokenizers."""
    folder = write_marian(tmp_path_factory.mktemp("marian"), lacking=120)
    size = len(read_ids(folder / "vocab.json"))
    config = parse_config(TINY | {"model_type": "bert", "vocab_size": size})
    load_tokenizer(folder, config, lowercase=False).save(str(folder / "tokenizer.json"))
    target = load_target_tokenizer(folder, size, lowercase=False)
    assert target is not None
    target.save(str(folder / TARGET_TOKENIZER))
    return folder


@pytest.fixture(scope="module")
def ours(folder: Path) -> TextTokenizer:
    prompts = {"query": "the ship: "}
    sentence = SentenceConfig(max_length=64, prompts=prompts, default_prompt_name="query")
    limits = Limits(64, 200)
    return TextTokenizer(folder / TOKENIZER, sentence, limits, folder / TARGET_TOKENIZER)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")
        yield AutoTokenizer.from_pretrained(folder)


def test_each_side_has_its_own_ids(ours: TextTokenizer, theirs: Any) -> None:
    found = ours.tokenize(TEXTS, Options(prompt_name=""))
    assert [text.input_ids.tolist() for text in found] == theirs(TEXTS)["input_ids"]
    targets = ours.tokenize_targets(TEXTS, NAMED)
    expected = theirs(text_target=TEXTS)["input_ids"]
    assert [target.input_ids.tolist() for target in targets] == expected
    assert expected != theirs(TEXTS)["input_ids"]
    unknown = theirs.unk_token_id
    assert any(unknown in text.input_ids for text in (*found, *targets))


def test_targets_have_no_prompt(ours: TextTokenizer) -> None:
    (target,) = ours.tokenize_targets(["water"], NAMED)
    assert target.prompt_tokens == 0
    assert target.offsets[0][0] == 0
    assert target.tokens[-1] == "</s>"
    assert list(target.special_tokens_mask)[-1] == 1


@pytest.mark.parametrize("direction", ["right", "left"])
def test_targets_are_cut_as_the_request_says(
    ours: TextTokenizer, theirs: Any, direction: Any
) -> None:
    text = "the water of the river that the ship carries"
    options = Options(truncate=True, direction=direction, max_tokens=5, naming="targets[{}]")
    (target,) = ours.tokenize_targets([text], options)
    whole = theirs(text_target=text)["input_ids"][:-1]
    kept = whole[:4] if direction == "right" else whole[-4:]
    assert target.input_ids.tolist() == [*kept, theirs.eos_token_id]
    assert target.truncated


def test_refusals_name_the_target(ours: TextTokenizer) -> None:
    with pytest.raises(InputTooLong, match=r"^targets\[1\] has 201 characters; at most 200"):
        ours.tokenize_targets(["a", "x" * 201], NAMED)
    with pytest.raises(InputTooLong, match=r"^targets\[3\] has \d+ tokens; at most 4 fit"):
        ours.tokenize_targets(TEXTS[2:], Options(max_tokens=4, naming="targets[{}]"), first=3)


def test_ids_beyond_the_vocabulary_are_none_of_the_models(
    ours: TextTokenizer, folder: Path
) -> None:
    size = len(read_ids(folder / "vocab.json"))
    assert FileTokenizer(folder / TOKENIZER).size == size
    assert Tokenizer.from_file(str(folder / TOKENIZER)).get_vocab_size() > size
    with pytest.raises(Unprocessable, match=f"ids are 0 … {size - 1}"):
        ours.decode("ids", TokenIds((size,)), skip_special_tokens=False)
    (spelling,) = ours.spell(TEXTS[:1], "", special_tokens=True)
    assert max(spelling.ids) < size


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (path := tmp_path / TOKENIZER).write_text("none")
    with pytest.raises(ArtifactError, match="cannot be read"):
        FileTokenizer(path)


@pytest.mark.parametrize(
    ("template", "closing"),
    [
        ("[CLS] $A [SEP]", ["[SEP]"]),
        ("$A [SEP]", ["[SEP]"]),
        ("[CLS] $A", []),
        ("[CLS] $A [SEP] <|end|>", ["[SEP]", "<|end|>"]),
        ("$A", []),
    ],
)
def test_what_closes_a_text_is_found_with_or_without_what_opens_it(
    template: str, closing: list[str]
) -> None:
    """BERT's, T5's and Marian's, an encoder's without an end, and mBART's."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["[CLS]", "[SEP]", "<|end|>"])
    ids = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]", "<|end|>")]
    tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=ids)
    assert closing_ids(tokenizer) == [tokenizer.token_to_id(name) for name in closing]


def test_files_of_the_same_content_share_a_tokenizer_while_it_is_used(
    folder: Path, tmp_path: Path
) -> None:
    one, same, other = (tmp_path / name for name in ("one", "same", "other"))
    for copy in (one, same):  # with a line feed, so that no other test uses the same content
        copy.write_bytes((folder / TOKENIZER).read_bytes() + b"\n")
    shutil.copy(folder / TARGET_TOKENIZER, other)
    tokenizer = shared_tokenizer(one)
    assert shared_tokenizer(same) is tokenizer
    assert shared_tokenizer(other) is not tokenizer
    assert len(shared_tokenizer(other).whole.get_vocab()) != len(tokenizer.whole.get_vocab())
    with pytest.raises(ArtifactError, match="missing"):
        shared_tokenizer(tmp_path / "missing")
    gone = weakref.ref(tokenizer)
    del tokenizer
    assert gone() is None
