from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers.base.modules import Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertTokenizer

from model.errors import CheckpointError
from model.families.registry import parse_config, read_config
from model.tokenization.tokenizer import (
    add_markers,
    load_target_tokenizer,
    load_tokenizer,
    special_tokens,
)
from model.tokenization.vocabulary import BEYOND, model_ids, vocabulary_size
from tests.model.checkpoints import SPECIAL_TOKENS, TINY, VOCABULARY, edit_json
from tests.model.refusals import refused
from tests.model.texts import TEXTS
from tests.model.tokenizer_folders import VOCAB_SIZE, write_tokenizer_folder
from tests.model.tokenizer_oracle import (
    SOME_TEXTS,
    assert_equals_transformers,
    assert_targets_equal_transformers,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with only a tokenizer and a config, to be changed."""
    vocabulary = {token: i for i, token in enumerate(VOCABULARY)}
    BertTokenizer(vocab=vocabulary).save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", **TINY, model_type="bert")
    return tmp_path


@pytest.mark.parametrize("checkpoint", ["minilm_checkpoint", "small_checkpoint"])
def test_a_real_tokenizer_equals_transformers(
    checkpoint: str, request: pytest.FixtureRequest
) -> None:
    assert_equals_transformers(request.getfixturevalue(checkpoint), vocab_size=30522)


def test_a_tiny_tokenizer_equals_transformers(folder: Path) -> None:
    assert_equals_transformers(folder)


@pytest.mark.parametrize("name", ["BertTokenizer", "PreTrainedTokenizerFast"])
def test_padding_and_truncation_of_the_file_are_off(folder: Path, name: str) -> None:
    edit_json(folder / "tokenizer_config.json", tokenizer_class=name)
    stored = Tokenizer.from_file(str(folder / "tokenizer.json"))
    stored.enable_padding(length=16)
    stored.enable_truncation(4)
    stored.save(str(folder / "tokenizer.json"))
    tokenizer = assert_equals_transformers(folder)
    assert (tokenizer.padding, tokenizer.truncation) == (None, None)
    assert len(tokenizer.encode("the " * 30)) == 32


def added(index: int, content: str, **fields: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": index, "content": content} | flags | fields


VOCABULARIES = {
    "plain": "\n".join(VOCABULARY) + "\n",
    "no final new line": "\n".join(VOCABULARY),
    "windows": "\r\n".join(VOCABULARY) + "\r\n",
    "spaces and blank lines": "\n".join(VOCABULARY).replace("\nd\n", "\nd \n\n\n") + "\n\n",
    "a word twice": "\n".join((*VOCABULARY, "the", "a")),
    "special tokens last": "\n".join((*VOCABULARY[5:], *SPECIAL_TOKENS)),
    "only [UNK]": "\n".join(("[UNK]", *VOCABULARY[5:])),
}


@pytest.mark.parametrize("vocabulary", VOCABULARIES.values(), ids=VOCABULARIES.keys())
def test_vocab_txt_alone_makes_berts_tokenizer(folder: Path, vocabulary: str) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    (folder / "vocab.txt").write_text(vocabulary, newline="")
    assert_equals_transformers(folder, vocab_size=70)


def test_vocab_txt_with_the_older_files_beside_it(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY))
    edit_json(folder / "special_tokens_map.json", sep_token="[E]")
    edit_json(folder / "added_tokens.json", **{"CAFÉ": 62, "[X]": 60, "[E]": 61})
    assert_equals_transformers(folder, vocab_size=63)


def test_tokenizer_json_goes_before_vocab_txt(folder: Path) -> None:
    (folder / "vocab.txt").write_text("\n".join(reversed(VOCABULARY)))
    assert_equals_transformers(folder)


@pytest.mark.parametrize("flag", [True, False])
def test_lowercase_equals_sentence_transformers(
    make_checkpoint: Callable[..., Path], flag: bool
) -> None:
    """`do_lower_case` of sentence_bert_config.json applies in addition to the tokenizer's flag."""
    folder = make_checkpoint()
    edit_json(folder / "tokenizer_config.json", do_lower_case=flag, strip_accents=False)
    theirs = Transformer(str(folder), do_lower_case=True).tokenizer
    config = read_config(folder)
    ours = load_tokenizer(folder, config, lowercase=True)
    expected = theirs(TEXTS, return_offsets_mapping=True)
    for i, (text, found) in enumerate(zip(TEXTS, ours.encode_batch(TEXTS), strict=True)):
        assert found.ids == expected["input_ids"][i], text
        assert found.offsets == expected["offset_mapping"][i], text
    plain = load_tokenizer(folder, config, lowercase=False)
    assert (plain.encode("A").ids == ours.encode("A").ids) is flag


@pytest.mark.parametrize("name", ["BertTokenizer", "PreTrainedTokenizerFast"])
def test_a_picture_that_the_encoder_has_no_row_for_is_a_text(folder: Path, name: str) -> None:
    """EmbeddingGemma's tokenizer has an image token right after its vocabulary."""
    whole = load_tokenizer(folder, parse_config(TINY | {"model_type": "bert"}), lowercase=False)
    token = added(60, "[image]", special=True)
    edit_json(
        folder / "tokenizer_config.json",
        tokenizer_class=name,
        image_token="[image]",
        added_tokens_decoder={"60": {key: token[key] for key in token if key != "id"}},
    )
    found = assert_equals_transformers(folder, vocab_size=61)
    assert 60 in found.encode("a [image] b").ids
    config = parse_config(TINY | {"model_type": "bert"})
    found = load_tokenizer(folder, config, lowercase=False)
    assert found.encode("a [image] b").tokens == whole.encode("a [image] b").tokens
    assert found.encode("the cat").ids == whole.encode("the cat").ids


@pytest.mark.parametrize(
    ("prompts", "texts", "ids"),
    [
        (["[Q] "], ["[Q] a", "[Q]b", "[q]"], [[2, 60, 5, 3], [2, 60, 6, 3], [2, 1, 21, 1, 3]]),
        (["the cat "], ["the cat"], [[2, 57, 58, 3]]),  # one token already
        (["[X] ", "", " "], ["[X]"], [[2, 1, 28, 1, 3]]),  # none of the vocabulary
    ],
)
def test_markers(folder: Path, prompts: list[str], texts: list[str], ids: list[list[int]]) -> None:
    """A marker in the vocabulary is one token, although a text would be split into pieces."""
    BertTokenizer(
        vocab={token: index for index, token in enumerate([*VOCABULARY, "[Q]"])}
    ).save_pretrained(folder)
    config = parse_config({"model_type": "bert", **TINY, "vocab_size": 61})
    tokenizer = load_tokenizer(folder, config, lowercase=False)
    assert len(tokenizer.encode("[Q]").ids) > 3
    add_markers(tokenizer, prompts)
    assert [tokenizer.encode(text).ids for text in texts] == ids
    assert tokenizer.get_vocab_size() == 61


def test_named_tokens(folder: Path) -> None:
    named = special_tokens(folder)
    assert (named["mask_token"], named.get("eos_token")) == ("[MASK]", None)


def refusal(folder: Path, vocab_size: int = len(VOCABULARY)) -> str:
    config = parse_config(TINY | {"model_type": "bert", "vocab_size": vocab_size})
    return refused(CheckpointError, folder, load_tokenizer, folder, config, lowercase=False)


def test_ids_beyond_the_encoders_vocabulary_are_refused(folder: Path) -> None:
    assert "reach 59, the encoder's vocabulary holds 59" in refusal(folder, vocab_size=59)
    edit_json(folder / "tokenizer_config.json", extra_special_tokens=["[E]"])
    assert "reach 60, the encoder's vocabulary holds 60" in refusal(folder)


@pytest.mark.parametrize(
    "settings",
    [
        {"sep_token": None},
        {"extra_special_tokens": "[X]"},
        {"extra_special_tokens": [{"x": 1}]},
        {"mask_token": ["x"]},
        {"extra_special_tokens": {"x": None}},
    ],
    ids=str,
)
def test_special_tokens_that_are_no_tokens_are_refused(
    folder: Path, settings: dict[str, Any]
) -> None:
    content = {"tokenizer_class": "RobertaTokenizer", "unk_token": "[UNK]"} | settings
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    message = refusal(folder)
    assert "no readable tokenizer: transformers cannot build a RobertaTokenizer of" in message
    assert ("(sep_token is null)" in message) == ("sep_token" in settings)
    assert "set tokenizer_class to PreTrainedTokenizerFast" in message


def test_a_folder_without_a_tokenizer_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert "neither tokenizer.json nor vocab.txt" in refusal(folder)


def test_vocab_txt_does_not_make_another_classs_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY))
    edit_json(folder / "tokenizer_config.json", tokenizer_class="BertJapaneseTokenizer")
    assert "no tokenizer.json, which a BertJapaneseTokenizer needs" in refusal(folder)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("tokenizer.json", "{", "no readable tokenizer"),
        ("tokenizer.json", "[]", "no readable tokenizer"),
        ("tokenizer.json", '{"model": {"type": "WordPiece"}}', "no readable tokenizer"),
        ("tokenizer_config.json", "{", "tokenizer_config.json is not readable JSON"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json does not hold a JSON object"),
        ("tokenizer_config.json", '{"do_lower_case": "no"}', "no readable tokenizer"),
        ("tokenizer_config.json", '{"sep_token": 3}', "no readable tokenizer"),
        ("tokenizer_config.json", '{"sep_token": "[SEP] [SEP]"}', "no readable tokenizer"),
        ("tokenizer_config.json", '{"added_tokens_decoder": [1]}', "no readable tokenizer"),
        ("tokenizer_config.json", '{"unk_token": "[E]"}', "vocabulary lacks [E]"),
        ("tokenizer_config.json", '{"split_special_tokens": true}', "split_special_tokens of"),
        ("tokenizer_config.json", '{"init_inputs": ["x"]}', "init_inputs of tokenizer_config.json"),
        (
            "tokenizer_config.json",
            '{"tokenizer_class": "XLMRobertaTokenizer"}',
            "transformers cannot build a XLMRobertaTokenizer of its files",
        ),
        ("special_tokens_map.json", "\x00", "special_tokens_map.json is not readable JSON"),
        ("added_tokens.json", "3", "added_tokens.json does not hold a JSON object"),
    ],
)
def test_a_file_that_is_not_supported(folder: Path, name: str, content: str, reason: str) -> None:
    (folder / name).write_text(content)
    assert reason in refusal(folder, vocab_size=61)


LANGUAGES = {
    "MBartTokenizer": ("ro_RO", "en_XX"),
    "MBart50Tokenizer": ("ro_RO", "en_XX"),
    "NllbTokenizer": ("ron_Latn", "eng_Latn"),
}


@pytest.mark.parametrize("name", LANGUAGES)
def test_languages_of_both_sides(tmp_path: Path, name: str) -> None:
    source, target = LANGUAGES[name]
    write_tokenizer_folder(tmp_path, name, src_lang=source, tgt_lang=target)
    assert_equals_transformers(tmp_path, VOCAB_SIZE, SOME_TEXTS)
    assert_targets_equal_transformers(tmp_path)


@pytest.mark.parametrize("name", LANGUAGES)
def test_without_a_targets_language_it_is_the_sources(tmp_path: Path, name: str) -> None:
    write_tokenizer_folder(tmp_path, name, src_lang=LANGUAGES[name][0])
    assert_targets_equal_transformers(tmp_path, SOME_TEXTS)
    assert load_target_tokenizer(tmp_path, VOCAB_SIZE, lowercase=False) is None


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("MBartTokenizer", "src_lang"),
        ("MBart50Tokenizer", "tgt_lang"),
        ("NllbTokenizer", "tgt_lang"),
    ],
)
def test_a_language_is_one_of_the_vocabulary(tmp_path: Path, name: str, setting: str) -> None:
    source, target = LANGUAGES[name]
    languages = {"src_lang": source, "tgt_lang": target} | {setting: "xx_XX"}
    write_tokenizer_folder(tmp_path, name, **languages)
    said = f"{setting} of tokenizer_config.json is 'xx_XX'; set it to a language"
    with pytest.raises(CheckpointError, match=said):
        load_target_tokenizer(tmp_path, VOCAB_SIZE, lowercase=False)


def test_a_class_whose_targets_are_like_its_sources(tmp_path: Path) -> None:
    write_tokenizer_folder(tmp_path, "T5Tokenizer")
    assert load_target_tokenizer(tmp_path, VOCAB_SIZE, lowercase=False) is None


WORDS = ["a", "<unk>", "b", BEYOND, "ab", "c"]
UNIGRAM = models.Unigram([(word, -float(word != "<unk>")) for word in WORDS], 1)
PAIRS = models.BPE({word: i for i, word in enumerate(WORDS)}, [("a", "b")], unk_token="<unk>")


@pytest.mark.parametrize("model", [UNIGRAM, PAIRS])
def test_pieces_beyond_the_vocabulary_are_the_unknown_token(model: models.Model) -> None:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    encoding = tokenizer.encode("a ab b x ab c")
    assert encoding.ids == [0, 4, 2, 1, 4, 5]
    assert model_ids(tokenizer, encoding) == [0, 1, 2, 1, 1, 1]
    assert vocabulary_size(tokenizer) == 3


def test_another_tokenizers_ids_are_its_own() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 7}, "a"))
    assert model_ids(tokenizer, tokenizer.encode("b")) == [7]
    assert vocabulary_size(tokenizer) == 8
    tokenizer.add_tokens(["c"])
    assert vocabulary_size(tokenizer) == max(tokenizer.get_vocab().values()) + 1
    assert vocabulary_size(Tokenizer(models.WordLevel({}, "a"))) == 0
