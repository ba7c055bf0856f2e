"""Tokens with offsets in UTF-8 bytes."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from service.inference.tokenization.pieces import Spelling

WORDS = {one: n for n, one in enumerate("a\x7f\x80\u07ff\u0800\uffff\U00010000😀?")}
"""The last and first characters of each length in UTF-8."""


@pytest.mark.parametrize("long_tokens", [0, 2**14])
@pytest.mark.parametrize("text", [" ".join(WORDS), "😀", "\x80 a", "  a"])
def test_pieces_are_the_bytes_of_the_text(
    text: str, long_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.inference.tokenization.pieces.LONG_TOKENS", long_tokens)
    tokenizer = Tokenizer(models.WordLevel(WORDS, "?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    encoding = tokenizer.encode(text)
    spelling = Spelling.of(text, encoding, encoding.ids)
    pieces = [piece for step in spelling.steps(2) for piece in step]
    assert pieces == [piece for step in spelling.steps(100) for piece in step]
    assert [piece.text for piece in pieces] == text.split()
    assert spelling.characters == len("".join(text.split()))
    for piece in pieces:
        assert text.encode()[piece.start : piece.stop].decode() == piece.text
        assert (piece.id, piece.special) == (WORDS[piece.text], False)
