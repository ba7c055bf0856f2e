"""Tokenizers that return segments, against transformers' own; templates of tokens and chats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import (
    AlbertConfig,
    AlbertModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    DebertaV2Config,
    DebertaV2Model,
    ElectraConfig,
    ElectraModel,
    NomicBertConfig,
    NomicBertModel,
)

from model.checkpoint import load_checkpoint
from model.errors import CheckpointError, ConfigError
from model.families.registry import parse_config, read_config
from model.numerics.batch import pack
from model.packing import PackedBatch
from model.tokenization import chat_template
from model.tokenization.chat_template import answer, rendered
from model.tokenization.templates import check_template, hands_segments, reading_segments
from model.tokenization.tokenizer import load_tokenizer
from tests.model.checkpoints import TINY, edit_json, write_tokenizer
from tests.model.families.parity import SIZES, randomized
from tests.model.tokenizer_folders import CLASSES, VOCAB_SIZE, write_tokenizer_folder

WIDE = SIZES | {"vocab_size": VOCAB_SIZE, "max_position_embeddings": 64, "type_vocab_size": 2}
DISENTANGLED = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8}
FAMILIES: dict[str, tuple[Any, str, bool]] = {
    "albert": (AlbertModel(AlbertConfig(**WIDE, embedding_size=16)), "AlbertTokenizer", False),
    "bert": (BertModel(BertConfig(**WIDE)), "BertTokenizer", True),
    "deberta-v2": (
        DebertaV2Model(DebertaV2Config(**WIDE, **DISENTANGLED)),
        *("DebertaV2Tokenizer", True),
    ),
    "electra": (ElectraModel(ElectraConfig(**WIDE, embedding_size=16)), "BertTokenizer", True),
    "nomic_bert": (NomicBertModel(NomicBertConfig(**WIDE)), "BertTokenizer", True),
}
INPUTS: list[Any] = [
    "the river runs",
    ("the river runs", "The cat looks at it"),
    ("", "a"),
    ("", ""),
]
NAMES = ["input_ids", "attention_mask"]


def states_are_transformers(folder: Path, model: Any) -> bool:
    """Compare hidden states of texts and pairs; return whether transformers' model got segments."""
    config = reading_segments(read_config(folder), folder)
    encoder, theirs = load_checkpoint(folder, config), AutoTokenizer.from_pretrained(folder)
    tokenizer = load_tokenizer(folder, config, lowercase=False)
    for text in INPUTS:
        given = theirs([text], return_tensors="pt")
        encoding = tokenizer.encode(*([text] if isinstance(text, str) else text))
        assert encoding.ids == given["input_ids"][0].tolist()
        packed = PackedBatch.of(pack([(encoding.ids, encoding.type_ids)]))
        with torch.inference_mode():
            expected = model(**given).last_hidden_state[0].numpy()
            found = encoder(packed).hidden_states[-1].numpy()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
        assert config.knows_segment(max(encoding.type_ids))
    return "token_type_ids" in given


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pair_is_transformers(tmp_path: Path, family: str) -> None:
    model, tokenizer, segments = FAMILIES[family]
    write_tokenizer_folder(tmp_path, tokenizer, model_max_length=64)
    randomized(model).save_pretrained(tmp_path)
    assert states_are_transformers(tmp_path, model) == segments
    names = NAMES if segments else [*NAMES, "token_type_ids"]
    edit_json(tmp_path / "tokenizer_config.json", model_input_names=names)
    assert states_are_transformers(tmp_path, model) != segments


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_hands_over_what_transformers_does(tmp_path: Path, name: str) -> None:
    theirs = AutoTokenizer.from_pretrained(write_tokenizer_folder(tmp_path, name))
    edit_json(tmp_path / "tokenizer_config.json", model_input_names=None)
    assert hands_segments(tmp_path) == ("token_type_ids" in theirs.model_input_names)


def test_a_tokenizer_json_as_it_stands_hands_over_none(tmp_path: Path) -> None:
    write_tokenizer_folder(tmp_path, "BertTokenizer", tokenizer_class="PreTrainedTokenizerFast")
    assert not hands_segments(tmp_path)
    assert "token_type_ids" not in AutoTokenizer.from_pretrained(tmp_path)("a", "b")


def test_names_are_a_list(tmp_path: Path) -> None:
    write_tokenizer_folder(tmp_path, "BertTokenizer", model_input_names="input_ids")
    with pytest.raises(CheckpointError, match=r"model_input_names .* is 'input_ids', not a list"):
        hands_segments(tmp_path)


CHATS = [[{"role": "query", "content": "a"}], [{"role": "query", "content": "é\n"}]]


def test_special_tokens_and_messages_are_variables() -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    expected = ["<s>query: a", "<s>query: é\n"]
    assert rendered(template, CHATS, {"bos_token": "<s>"}) == expected


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{{ raise_exception('no\nroles') }}", "no roles"),
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "'__class__' of 'list' object"),
    ],
)
def test_errors_are_one_line(template: str, error: str) -> None:
    asked = {"template": template, "chats": CHATS, "tokens": {}}
    assert error in answer(asked)["error"]


def test_a_template_of_a_large_text_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^the chat template cannot be rendered: MemoryError"):
        rendered("{{ 'x' * 99999999999 }}", CHATS, {})


def test_a_template_that_does_not_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "SECONDS", 1)
    loop = "{% for i in range(99999) %}"
    with pytest.raises(ConfigError, match="is not rendered within 1 s"):
        rendered(5 * loop + "x" + 5 * "{% endfor %}", CHATS, {})


@pytest.mark.parametrize(
    ("token", "count", "segment", "said"),
    [
        ("[CLS]", 200, 0, "puts 200 special tokens around a text, of which the model takes 40 tok"),
        ("[CLS]", 40, 0, "puts 40 special tokens around a text, of which the model takes 40 tok"),
        ("[CLS]", 1, 7, r"gives a text the segment 7, where the encoder has 2 \(type_vocab_size\)"),
        ("[X]", 1, 0, "puts the token 999999 around a text, where the encoder has 60"),
    ],
)
def test_templates_that_the_model_cannot_take(
    tmp_path: Path, token: str, count: int, segment: int, said: str
) -> None:
    config = parse_config({**TINY, "model_type": "bert"})
    write_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path, config, lowercase=False)
    check_template(tmp_path, tokenizer, config, 40)
    tokenizer.add_special_tokens(["[X]"])
    tokenizer.post_processor = TemplateProcessing(
        single=" ".join([f"{token}:{segment}"] * count + [f"$A:{segment}"]),
        pair="$A $B",
        special_tokens=[("[CLS]", 2), ("[X]", 999_999)],
    )
    with pytest.raises(CheckpointError, match=said) as failed:
        check_template(tmp_path, tokenizer, config, 40)
    assert "\n" not in str(failed.value)
