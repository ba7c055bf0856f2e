"""Truncation and prompts; the tokenizers library is the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers.base.modules import Transformer
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

from model.artifact.manifest import TOKENIZER, Artifact
from model.artifact.sentence import SentenceConfig
from service.errors import InputTooLong, Unprocessable
from service.inference.tokenization import truncation
from service.inference.tokenization.inputs import TextOrPair
from service.inference.tokenization.text import NO_PROMPT, Text
from service.inference.tokenization.tokenizer import Limits, Options, TextTokenizer
from service.inference.tokenization.truncation import (
    Direction,
    Truncator,
    encode,
)

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
    tokenizer: Tokenizer,
    cutting: Tokenizer,
    text: TextOrPair,
    max_tokens: int,
    direction: Direction,
) -> None:
    encoding, cut = Truncator(tokenizer, max_tokens, direction).encode(text)
    found = Text(encoding, encoding.ids, frozenset(), NO_PROMPT, cut)
    cutting.enable_truncation(max_tokens, direction=direction)
    expected = cutting.encode_batch([text])[0]
    assert found.input_ids.tolist() == expected.ids
    assert found.tokens == expected.tokens
    assert found.segments == expected.type_ids
    assert found.special_tokens_mask == expected.special_tokens_mask
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
    """Pairs are short, as what the library cuts from them is the product of their lengths."""
    texts = st.lists(PIECES, max_size=120).map("".join)
    of_pairs = st.lists(PIECES.filter(lambda piece: len(piece) < 20), max_size=40).map("".join)
    pairs = st.tuples(of_pairs, of_pairs) | of_pairs.map(lambda text: (text, text))
    text: TextOrPair = data.draw(texts | pairs)
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

    def counted(tokenizer: Tokenizer, text: TextOrPair, *, special_tokens: bool = True) -> Encoding:
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
        assert truncator.encode(text)[1]
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
        encoding, cut = Truncator(tokenizer, 64, "right").encode((text, text))
        assert len(cut.kept if cut else encoding) <= 64
        assert encoding.overflowing == []
        assert sum(encoded) <= 7 * 2 * count


LONG = "the cat sat on the mat and looked at another one"


def test_a_requested_length_has_to_leave_room(artifact: Artifact) -> None:
    limits = Limits(max_tokens=64, max_characters=1000)
    tokenizer = TextTokenizer(artifact.path(TOKENIZER), SentenceConfig(max_length=64), limits)
    (text,) = tokenizer.tokenize([LONG], Options(truncate=True, direction="left", max_tokens=5))
    assert text.tokens == ["[CLS]", "at", "another", "one", "[SEP]"]
    with pytest.raises(InputTooLong, match=r"^inputs\[0\]: 2 tokens leave no room"):
        tokenizer.tokenize([LONG], Options(truncate=True, max_tokens=2))


PROMPTS = {"query": "query: ", "cut": "quer", "accents": "É\u0301tude: ", "empty": ""}


@pytest.fixture(scope="module")
def prompt_tokenizer(artifact: Artifact) -> TextTokenizer:
    sentence = SentenceConfig(max_length=16, prompts=PROMPTS)
    return TextTokenizer(artifact.path(TOKENIZER), sentence, Limits(16, 60))


def one(prompt_tokenizer: TextTokenizer, text: Any, prompt: str | None, **options: Any) -> Text:
    (found,) = prompt_tokenizer.tokenize([text], Options(prompt_name=prompt, **options))
    return found


@pytest.mark.parametrize(
    ("prompt", "text", "tokens", "offsets", "prompt_tokens"),
    [
        (None, "two words", "two words", [(0, 3), (4, 9)], 0),
        ("empty", "two words", "two words", [(0, 3), (4, 9)], 0),
        ("", "two words", "two words", [(0, 3), (4, 9)], 0),
        ("query", "two words", "query : two words", [(0, 0), (0, 0), (0, 3), (4, 9)], 3),
        ("query", "", "query :", [(0, 0), (0, 0)], 3),
        # a prompt that ends in the middle of a word: tokens of the prompt alone, which differ
        ("cut", "y this", "query this", [(0, 1), (2, 6)], 3),
    ],
)
def test_tokens_are_of_the_prefixed_text_and_offsets_the_callers(
    prompt_tokenizer: TextTokenizer,
    prompt: str | None,
    text: str,
    tokens: str,
    offsets: list[tuple[int, int]],
    prompt_tokens: int,
) -> None:
    found = one(prompt_tokenizer, text, prompt)
    plain = one(prompt_tokenizer, PROMPTS.get(prompt or "", "") + text, None)
    np.testing.assert_array_equal(found.input_ids, plain.input_ids)
    np.testing.assert_array_equal(found.segment_ids, plain.segment_ids)
    assert found.tokens == ["[CLS]", *tokens.split(), "[SEP]"]
    assert found.offsets == [(0, 0), *offsets, (0, 0)]
    assert found.prompt_tokens == prompt_tokens
    own = len(found.tokens) - 1 - max(prompt_tokens, 1)
    assert list(found.special_tokens_mask) == [*[1] * max(prompt_tokens, 1), *[0] * own, 1]


def test_code_points_are_counted_not_bytes(prompt_tokenizer: TextTokenizer) -> None:
    text = "naïve 😀 café"
    found = one(prompt_tokenizer, text, "accents")
    words = [text[start:end] for start, end in found.offsets[found.prompt_tokens : -1]]
    assert "".join(words).replace(" ", "") == "naïve😀café"
    assert set(found.offsets[: found.prompt_tokens]) == {(0, 0)}


def test_the_second_segment_has_no_prompt(prompt_tokenizer: TextTokenizer) -> None:
    found = one(prompt_tokenizer, ("two words", "and more"), "query")
    plain = one(prompt_tokenizer, ("query: two words", "and more"), None)
    assert found.tokens == plain.tokens
    assert found.segment_ids.tolist() == [0] * 6 + [1] * 3
    assert found.offsets[-3:] == [(0, 3), (4, 8), (0, 0)]
    assert found.prompt_tokens == 3


def test_tokens_of_a_prompt_are_counted_as_sentence_transformers_does(
    artifact: Artifact, prompt_tokenizer: TextTokenizer, small_checkpoint: Path
) -> None:
    theirs = Transformer(str(small_checkpoint))
    for name, prompt in PROMPTS.items():
        if prompt:
            expected = theirs.preprocess(["two words"], prompt=prompt)["prompt_length"]
            assert one(prompt_tokenizer, "two words", name).prompt_tokens == expected


def test_a_prompt_that_fills_the_limit_leaves_one_token_to_the_pooling(
    artifact: Artifact,
) -> None:
    sentence = SentenceConfig(max_length=4, prompts=PROMPTS, include_prompt=False)
    prompt_tokenizer = TextTokenizer(artifact.path(TOKENIZER), sentence, Limits(3, 60))
    found = one(prompt_tokenizer, "two words", "query", truncate=True)
    assert (len(found.tokens), found.first_pooled(sentence)) == (3, 2)


def test_the_checkpoints_default_goes_before_texts_that_name_none(artifact: Artifact) -> None:
    sentence = SentenceConfig(max_length=16, prompts=PROMPTS, default_prompt_name="query")
    prompt_tokenizer = TextTokenizer(artifact.path(TOKENIZER), sentence, Limits(16, 60))
    assert one(prompt_tokenizer, "it", None).tokens == ["[CLS]", "query", ":", "it", "[SEP]"]
    assert (
        one(prompt_tokenizer, "it", "cut").tokens[1:3]
        == one(prompt_tokenizer, "querit", "").tokens[1:3]
    )
    assert one(prompt_tokenizer, "it", "").tokens == ["[CLS]", "it", "[SEP]"]
    assert one(prompt_tokenizer, "it", "").prompt_tokens == 0


def test_the_prompt_counts_for_the_limit_and_for_the_cut(prompt_tokenizer: TextTokenizer) -> None:
    assert len(one(prompt_tokenizer, "it " * 12, "query").tokens) == 16
    assert one(prompt_tokenizer, "it".ljust(60), "query").prompt_tokens == 3  # of 60 characters
    with pytest.raises(InputTooLong, match="17 tokens; at most 16"):
        one(prompt_tokenizer, "it " * 13, "query")
    right = one(prompt_tokenizer, "it " * 12 + "end", "query", truncate=True)
    assert right.prompt_tokens == 3
    assert "end" not in right.tokens
    left = one(prompt_tokenizer, "it " * 12 + "end", "query", truncate=True, direction="left")
    assert left.tokens[:3] == ["[CLS]", ":", "it"]
    assert left.prompt_tokens == 2
    assert left.offsets[-2] == (36, 39)
    bare = one(prompt_tokenizer, "it " * 15, "query", truncate=True, direction="left")
    assert (bare.prompt_tokens, bare.offsets[1]) == (0, (3, 5))  # the whole prompt is cut


def test_an_unknown_prompt_names_the_known_ones(
    artifact: Artifact, prompt_tokenizer: TextTokenizer
) -> None:
    plain = TextTokenizer(artifact.path(TOKENIZER), artifact.manifest.sentence, Limits(16, 60))
    for own, name, known in (
        (prompt_tokenizer, "canary", "accents, cut, empty, query"),
        (plain, "canary", "none"),
        (plain, "", "none"),
    ):
        with pytest.raises(Unprocessable, match=f"names: {known}$") as refused:
            one(own, "some", name)
        assert "canary" not in str(refused.value)
