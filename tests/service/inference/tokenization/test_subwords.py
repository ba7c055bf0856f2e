"""Tokens that continue a word, by hand; the tests of spans use transformers' pipeline."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from model.tokenization.vocabulary import unknown_ids
from service.inference.tokenization.subwords import Subwords

PIECES = [("<unk>", 0.0), ("▁", -2.0), ("▁the", -1.0), ("cat", -1.0), ("s", -2.0), ("▁ca", -9.0)]
WORDS = {"[UNK]": 0, "the": 1, "cat": 2, "##s": 3, "##at": 4}


def continuing(tokenizer: Tokenizer, text: str) -> dict[str, bool]:
    encoding = tokenizer.encode(text)
    words = Subwords(tokenizer, unknown_ids(tokenizer))
    found = words.continuing(text, np.array(encoding.ids), encoding.offsets)
    places = [text[start:end] for start, end in encoding.offsets]
    return dict(zip(places, found, strict=True))


def test_pieces_that_are_marked() -> None:
    tokenizer = Tokenizer(models.WordPiece(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    found = continuing(tokenizer, "the cats, ?")
    assert found == {"the": False, "cat": False, "s": True, ",": False, "?": False}


@pytest.mark.parametrize("unknown", [0, 4])
def test_pieces_that_are_not_marked(unknown: int) -> None:
    """A space before a token, or at its start, begins a word; so does the unknown token."""
    tokenizer = Tokenizer(models.Unigram(PIECES, unk_id=unknown, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    found = continuing(tokenizer, "the cats")
    assert found == {"the": False, " ": False, "cat": False, "s": unknown == 0}
