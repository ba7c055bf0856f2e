"""Tokens of an excerpt equal the whole text's, truncated; the tokenizers library is the oracle."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer, UnigramTrainer

from service.inference.tokenization import truncation
from service.inference.tokenization.truncation import Cutter, Direction

PROSE = "The water of the river runs down from the hills into one sea, where ships wait. "
PIECES = st.sampled_from(
    ["the ", "water", " ", "  ", "\n", "!", "!!!", "[SEP]", "[SE", "P]", "<|end|>", "<|", "|>",
     "水", "e\u0301", "\u0301", "é", "👩‍👩‍👧", "x" * 120, "don't ", "1234567890", "ﬁ", "İ",
     "\u200b", "\0", "ß"]
)  # fmt: skip


def with_specials(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens(
        ["[CLS]", "[SEP]", "<|end|>", AddedToken("[LONG ONE]", lstrip=True)]
    )
    ids = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=ids
    )
    return tokenizer


def byte_pairs() -> Tokenizer:
    """As RoBERTa's and ModernBERT's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [PROSE] * 9, BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    return with_specials(tokenizer)


def sentence_pieces() -> Tokenizer:
    """As XLM-R's."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(
        [PROSE] * 9,
        UnigramTrainer(
            vocab_size=60, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
        ),
    )
    return with_specials(tokenizer)


@pytest.fixture(scope="module")
def tokenizers_by_name(small_checkpoint: Path) -> dict[str, Tokenizer]:
    word_pieces = Tokenizer.from_file(str(small_checkpoint / "tokenizer.json"))
    word_pieces.no_truncation()
    word_pieces.no_padding()
    return {
        "word pieces": word_pieces,
        "byte pairs": byte_pairs(),
        "sentence pieces": sentence_pieces(),
    }


@pytest.fixture(scope="module")
def cutting(tokenizers_by_name: dict[str, Tokenizer]) -> dict[str, Tokenizer]:
    """Return copies of tokenizers that truncate by themselves, as a test sets."""
    return {name: Tokenizer.from_str(one.to_str()) for name, one in tokenizers_by_name.items()}


@pytest.mark.parametrize("name", ["word pieces", "byte pairs", "sentence pieces"])
@pytest.mark.parametrize("direction", ["right", "left"])
@settings(max_examples=80)
@given(data=st.data())
def test_an_excerpt_has_the_tokens_of_the_whole(
    tokenizers_by_name: dict[str, Tokenizer],
    cutting: dict[str, Tokenizer],
    name: str,
    direction: Direction,
    data: st.DataObject,
) -> None:
    text = "".join(data.draw(st.lists(PIECES, max_size=120)))
    max_tokens = data.draw(st.integers(4, 20))
    tokenizer = tokenizers_by_name[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(truncation, "CHARACTERS_PER_TOKEN", data.draw(st.integers(1, 8)))
        found = Cutter(tokenizer, max_tokens, direction).encode(text)
    cutting[name].enable_truncation(max_tokens, direction=direction)
    expected = cutting[name].encode(text)
    assert found.encoding.ids == expected.ids
    assert found.encoding.tokens == expected.tokens
    assert found.offsets == expected.offsets
    assert found.truncated == bool(expected.overflowing)


@pytest.mark.parametrize("direction", ["right", "left"])
def test_a_text_that_is_far_too_long_is_not_read_whole(
    tokenizers_by_name: dict[str, Tokenizer], direction: Direction, monkeypatch: pytest.MonkeyPatch
) -> None:
    cutter = Cutter(tokenizers_by_name["word pieces"], 16, direction)
    read = []

    class Counting:
        def encode(self, text: str, **options: bool) -> object:
            read.append(len(text))
            return real.encode(text, **options)

    real, cutter._tokenizer = cutter._tokenizer, Counting()  # type: ignore[assignment]
    for text in ("! " * 10**6, PROSE * 10**4, "水" * 10**6):
        read.clear()
        assert cutter.encode(text).truncated
        assert sum(read) <= 16 * truncation.CHARACTERS_PER_TOKEN


def test_a_pair_is_cut_where_its_longer_text_is(
    tokenizers_by_name: dict[str, Tokenizer], cutting: dict[str, Tokenizer]
) -> None:
    cutter = Cutter(tokenizers_by_name["word pieces"], 16, "right")
    found = cutter.encode(("the water " * 40, "the hill"))
    cutting["word pieces"].enable_truncation(16)
    expected = cutting["word pieces"].encode("the water " * 40, "the hill")
    assert (found.encoding.ids, found.offsets) == (expected.ids, expected.offsets)
    assert found.truncated
