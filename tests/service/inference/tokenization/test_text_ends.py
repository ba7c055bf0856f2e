from __future__ import annotations

from pathlib import Path

import pytest

from model.artifact.sentence import SentenceConfig
from service.errors import InputTooLong
from service.inference.tokenization.tokenizer import Limits, Options, TextTokenizer
from service.inference.tokenization.truncation import shortened
from tests.model.checkpoints import VOCABULARY, write_tokenizer
from tests.model.tower_checkpoints import write_clip_tokenizer

PAD, SEP, A, B = (VOCABULARY.index(token) for token in ("[PAD]", "[SEP]", "a", "b"))
CLS = VOCABULARY.index("[CLS]")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path)
    return tmp_path / "tokenizer.json"


def tokenizer(path: Path, sentence: SentenceConfig) -> TextTokenizer:
    return TextTokenizer(path, sentence, Limits(sentence.max_length, 1000))


def test_texts_are_padded_to_the_full_length(path: Path) -> None:
    own = tokenizer(path, SentenceConfig(max_length=6, pad_token_id=PAD))
    short, full = own.tokenize(["a b", "a b a b"], Options())
    assert short.input_ids.tolist() == [CLS, A, B, SEP, PAD, PAD]
    assert list(short.special_tokens_mask) == [1, 0, 0, 1, 1, 1]
    assert short.tokens[-1] == "[PAD]"
    assert short.places.tolist()[-2:] == [[0, 0], [0, 0]]
    assert not short.truncated
    assert full.padding_tokens == 0
    for text in (short, full):
        cut = shortened(text, 3, "right")
        assert cut.input_ids.tolist() == [CLS, A, SEP, PAD, PAD, PAD]
        assert cut.truncated
    assert shortened(short, 4, "right").input_ids.tolist() == short.input_ids.tolist()


def test_a_padded_text_has_no_windows(path: Path) -> None:
    own = tokenizer(path, SentenceConfig(max_length=6, pad_token_id=PAD))
    with pytest.raises(InputTooLong, match="has 7 tokens"):
        own.tokenize(["a b a b a"], Options(windows=True))


def test_a_text_is_cut_after_its_first_end_token(path: Path) -> None:
    own = tokenizer(path, SentenceConfig(max_length=20, end_token_id=SEP))
    cut, whole = own.tokenize(["a [SEP] b", "a b"], Options())
    assert cut.input_ids.tolist() == [CLS, A, SEP]
    assert (cut.truncated, cut.tokens, len(cut.places)) == (True, ["[CLS]", "a", "[SEP]"], 3)
    assert whole.input_ids.tolist() == [CLS, A, B, SEP]
    assert not whole.truncated


def test_an_end_token_that_is_the_unknown_one_too_gives_no_warning(tmp_path: Path) -> None:
    write_clip_tokenizer(tmp_path)
    own = TextTokenizer(tmp_path / "tokenizer.json", SentenceConfig(max_length=20), Limits(20, 99))
    (text,) = own.tokenize(["a cat"], Options())
    assert text.input_ids[-1] in own._source.unknown_ids
    assert not text.unknown.any()
