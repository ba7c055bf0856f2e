"""Words and sentences of a text, and the tokens that they hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.inference.explanation.spans import (
    Block,
    Span,
    blocks_of,
    spans_of,
    split_sentences,
)
from service.inference.tokenization.tokenized import PictureView, places_of
from tests.service.harness import tokenized


@pytest.mark.parametrize(
    "sentences",
    [
        ["One.", "Two!", "Three?"],
        ["He said “no.”", "Then he left (at last!)", "And that was it"],
        ["It costs 3.14 in the U.S. today.", "No more"],
        ["Wait… what?", "Yes…", "Well!?"],
        ["今日は。", "「はい。」", "そうですか？", "ええ"],
        ["Ça va?", "Über alles.", "Ещё раз."],
        ["no end"],
        ["..."],
    ],
    ids=str,
)
def test_sentences_are_found_between_white_space(sentences: list[str]) -> None:
    for gap in (" ", "\n", " \r\n\t"):
        text = gap + gap.join(sentences) + gap
        assert [text[start:end] for start, end in split_sentences(text)] == sentences


def test_ideographic_sentences_need_no_space_and_lines_end_them() -> None:
    text = "今日は。はい。 A heading\nA sentence. and more"
    found = [text[start:end] for start, end in split_sentences(text)]
    assert found == ["今日は。", "はい。", "A heading", "A sentence. and more"]
    assert split_sentences(" \n ") == []


def test_spans_hold_the_tokens_of_their_characters() -> None:
    text = "A dog's life. Good"
    offsets = [(0, 0), (0, 1), (2, 5), (5, 7), (8, 12), (12, 13), (14, 16), (0, 0)]
    special = [1, 0, 0, 0, 0, 0, 0, 1]
    cut = replace(tokenized(8), places=places_of(offsets), special_tokens_mask=special)
    assert spans_of("sentences", text, cut) == [
        Span(0, 13, (1, 2, 3, 4, 5)),
        Span(14, 18, (6,)),
    ]
    assert spans_of("words", text, cut) == [
        Span(0, 1, (1,)),
        Span(2, 7, (2, 3)),
        Span(8, 12, (4,)),
        Span(12, 13, (5,)),
        Span(14, 18, (6,)),
    ]
    assert spans_of("tokens", text, cut) == [
        Span(start, end, (n,)) for n, (start, end) in enumerate(offsets)
    ]
    shorter = replace(cut, places=places_of([*offsets[:6], (0, 0), (0, 0)]))
    assert spans_of("sentences", text, shorter) == [Span(0, 13, (1, 2, 3, 4, 5))]


def test_blocks_cover_each_patch_once_and_no_special_token() -> None:
    """A class token, then 3 rows of 5 patches."""
    picture = replace(tokenized(16), picture=PictureView((3, 5), (50, 30), (0, 0, 50, 30)))
    assert blocks_of(picture, 2) == [
        Block((0, 2), (0, 2), (1, 2, 6, 7)),
        Block((0, 2), (2, 4), (3, 4, 8, 9)),
        Block((0, 2), (4, 5), (5, 10)),
        Block((2, 3), (0, 2), (11, 12)),
        Block((2, 3), (2, 4), (13, 14)),
        Block((2, 3), (4, 5), (15,)),
    ]
    assert [block.tokens for block in blocks_of(picture, 1)] == [(n,) for n in range(1, 16)]
    assert [block.tokens for block in blocks_of(picture, 9)] == [tuple(range(1, 16))]
    with pytest.raises(ValueError, match="no patches"):
        blocks_of(tokenized(16), 1)
