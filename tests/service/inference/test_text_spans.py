"""Tokens of character spans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling as Library

from service.errors import Unprocessable
from service.inference import text_spans
from service.inference.text_spans import OwnTokens, span_vectors, spans_of
from service.inference.tokenization.tokenized import TokenizedText, places_of
from tests.service.harness import tokenized


def text_of(places: list[tuple[int, int]], special: list[int]) -> TokenizedText:
    """Return a text with given offsets and special tokens."""
    text = tokenized(len(places))
    text.places, text.special_tokens_mask = places_of(places), bytes(special)
    text.truncated = False
    return text


def test_a_word_belongs_to_its_span_without_the_space_before_it() -> None:
    """Byte-level tokenizers count the space before a word as its own, which `trim_offsets` sets."""
    text = text_of([(0, 3), (3, 7), (7, 8), (0, 0)], [0, 0, 0, 1])
    own = OwnTokens.of("abc def ", text)
    assert own.ranges([(0, 4), (4, 7), (7, 8), (3, 8)]).tolist() == [[0, 1], [1, 2], [2, 3], [1, 3]]


def test_tokens_of_a_prompt_and_special_tokens_belong_to_no_span() -> None:
    text = text_of([(0, 0), (0, 0), (0, 2), (2, 4), (0, 0)], [1, 1, 0, 0, 1])
    assert OwnTokens.of("abcd", text).ranges([(0, 4), (3, 4)]).tolist() == [[2, 4], [3, 4]]


def test_bytes_of_a_character_stay_together() -> None:
    text = text_of([(0, 1), (0, 1), (0, 1), (1, 2)], [0] * 4)
    assert OwnTokens.of("😀a", text).ranges([(0, 1), (1, 2)]).tolist() == [[0, 3], [3, 4]]


def test_a_text_without_own_tokens_has_no_span() -> None:
    text = text_of([(0, 0), (0, 0)], [1, 1])
    with pytest.raises(Unprocessable, match=r"spans\[0\]\[0\] is \[0, 1\), which has no token"):
        spans_of([" "], [[(0, 1)]], [text])


def test_tokens_of_all_spans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_spans, "MOST_SPAN_TOKENS", 5)
    text = text_of([(0, 1), (1, 2), (2, 3)], [0] * 3)
    assert len(spans_of(["abc"], [[(0, 3), (0, 2)]], [text])[0].ranges) == 2
    with pytest.raises(Unprocessable, match="6 tokens together; at most 5"):
        spans_of(["abc"] * 2, [[(0, 3)], [(0, 3)]], [text] * 2)


@pytest.mark.parametrize(
    "mode", ["mean", "max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean"]
)
def test_a_span_is_pooled_as_a_text_is(mode: Any) -> None:
    state = np.random.default_rng(0).standard_normal((9, 8), np.float32)
    own: Any = {"lasttoken": "last"}.get(mode, mode)
    (found,) = span_vectors(state, np.array([[2, 7]]), own)
    features = {
        "token_embeddings": torch.from_numpy(state[None, 2:7]),
        "attention_mask": torch.ones(1, 5),
    }
    wanted = Library(8, mode)(features)["sentence_embedding"][0]
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5, atol=1e-6)
