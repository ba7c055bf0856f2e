"""Tokens with offsets in UTF-8 bytes."""

from __future__ import annotations

from typing import Any, cast

import pytest
from tokenizers import Encoding, Tokenizer, models, pre_tokenizers, processors

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
    spelling = Spelling.of(text, encoding, encoding.ids, tokenizer.id_to_token)
    pieces = [piece for step in spelling.steps(2) for piece in step]
    assert pieces == [piece for step in spelling.steps(100) for piece in step]
    assert [piece.text for piece in pieces] == text.split()
    assert spelling.characters == len("".join(text.split()))
    for piece in pieces:
        assert text.encode()[piece.start : piece.stop].decode() == piece.text
        assert (piece.id, piece.special) == (WORDS[piece.text], False)


class Watched:
    """Encoding that records the names of the lists that are read."""

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.read: set[str] = set()

    def __len__(self) -> int:
        return len(self.encoding)

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(self.encoding, name)


def test_special_tokens_are_named_without_a_list_of_all_names() -> None:
    """Such a list takes 30 ms for 500,000 tokens, in which no other thread runs."""
    tokenizer = Tokenizer(models.WordLevel({"[CLS]": 0, "?": 1}, "?"))
    tokenizer.add_special_tokens(["[CLS]"])
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A", None, [("[CLS]", 0)])
    watched = Watched(tokenizer.encode("?"))
    spelling = Spelling.of(
        "?", cast(Encoding, watched), watched.encoding.ids, tokenizer.id_to_token
    )
    assert [piece.text for step in spelling.steps(9) for piece in step] == ["[CLS]", "?"]
    assert watched.read == {"special_tokens_mask", "offsets"}
