"""Tokens of an excerpt equal the whole text's, truncated; the tokenizers library is the oracle."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Encoding,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer, UnigramTrainer

from service.inference.tokenization import truncation
from service.inference.tokenization.inputs import Text
from service.inference.tokenization.truncation import Direction, Truncator, encode

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


KINDS = ["word pieces", "byte pairs", "sentence pieces"]


def assert_cut_as_the_library_cuts(
    tokenizer: Tokenizer, cutting: Tokenizer, text: Text, max_tokens: int, direction: Direction
) -> None:
    found = Truncator(tokenizer, max_tokens, direction).encode(text)
    cutting.enable_truncation(max_tokens, direction=direction)
    expected = cutting.encode_batch([text])[0]
    assert found.of(found.encoding.ids) == expected.ids
    assert found.of(found.encoding.tokens) == expected.tokens
    assert found.of(found.encoding.type_ids) == expected.type_ids
    assert found.of(found.encoding.special_tokens_mask) == expected.special_tokens_mask
    assert found.offsets == expected.offsets
    assert found.truncated == bool(expected.overflowing)


@pytest.mark.parametrize("name", KINDS)
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
    """Of texts, and of pairs whose texts may have equally many tokens.

    Pairs are short, as what the library cuts from them is the product of their lengths.
    """
    texts = st.lists(PIECES, max_size=120).map("".join)
    of_pairs = st.lists(PIECES.filter(lambda piece: len(piece) < 20), max_size=40).map("".join)
    pairs = st.tuples(of_pairs, of_pairs) | of_pairs.map(lambda text: (text, text))
    text: Text = data.draw(texts | pairs)
    max_tokens = data.draw(st.integers(4, 20))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(truncation, "CHARACTERS_PER_TOKEN", data.draw(st.integers(1, 8)))
        assert_cut_as_the_library_cuts(
            tokenizers_by_name[name], cutting[name], text, max_tokens, direction
        )


@pytest.mark.parametrize("direction", ["right", "left"])
@pytest.mark.parametrize("name", KINDS)
def test_of_a_pair_the_text_with_more_tokens_keeps_the_odd_one(
    tokenizers_by_name: dict[str, Tokenizer],
    cutting: dict[str, Tokenizer],
    name: str,
    direction: Direction,
) -> None:
    """Both texts have more tokens than the limit, and nearly or exactly as many as the other."""
    tokenizer, cut = tokenizers_by_name[name], cutting[name]
    for counts in [(20, 20), (20, 21), (21, 20), (19, 90), (90, 19), (90, 90), (91, 90)]:
        for words in ("! ", "a "), ("water ", "! "), ("水 ", "the "):
            pair = words[0] * counts[0], words[1] * counts[1]
            for max_tokens in (10, 11, 16, 17):
                assert_cut_as_the_library_cuts(tokenizer, cut, pair, max_tokens, direction)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the characters of each text that is tokenised from now on."""
    read = []

    def counted(tokenizer: Tokenizer, text: Text, *, special_tokens: bool = True) -> Encoding:
        read.append(len(text) if isinstance(text, str) else sum(map(len, text)))
        return encode(tokenizer, text, special_tokens=special_tokens)

    monkeypatch.setattr(truncation, "encode", counted)
    return read


@pytest.mark.parametrize("direction", ["right", "left"])
def test_a_text_that_is_far_too_long_is_not_read_whole(
    tokenizers_by_name: dict[str, Tokenizer], direction: Direction, encoded: list[int]
) -> None:
    truncator = Truncator(tokenizers_by_name["word pieces"], 16, direction)
    for text in ("! " * 10**6, PROSE * 10**4, "水" * 10**6):
        encoded.clear()
        assert truncator.encode(text).truncated
        assert sum(encoded) <= 16 * truncation.CHARACTERS_PER_TOKEN


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("unit", ["!", "水", "a ", "the water of ", "x"])
def test_the_cost_of_a_pair_is_linear(
    tokenizers_by_name: dict[str, Tokenizer], name: str, unit: str, encoded: list[int]
) -> None:
    """Each text is read a few times, also without words; what is cut is never built."""
    tokenizer = tokenizers_by_name[name]
    for count in (10**4, 2 * 10**4):
        text = (unit * count)[:count]
        encoded.clear()
        found = Truncator(tokenizer, 64, "right").encode((text, text))
        assert len(found.of(found.encoding.ids)) <= 64
        assert found.encoding.overflowing == []
        assert sum(encoded) <= 7 * 2 * count
