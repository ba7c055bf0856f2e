"""Sentences and paragraphs."""

from __future__ import annotations

import itertools
import time

from service.inference import chunks
from service.inference.chunks import paragraph_starts, sentence_starts


def parts(text: str, starts: list[int]) -> list[str]:
    bounds = [0, *starts, len(text)]
    return [text[start:end] for start, end in itertools.pairwise(bounds)]


def test_sentences_end_where_a_reader_ends_them() -> None:
    wanted = [
        "Dr. Smith met J. R. R. Tolkien at 3.14 p.m. in St. Louis. ",
        '"Really?" she asked. ',
        "Yes! ",
        "😀 他来了。",
        "你好！",
        "A line that is\nwrapped.",
    ]
    text = "".join(wanted)
    assert parts(text, sentence_starts(text)) == wanted


def test_paragraphs_end_at_blank_lines() -> None:
    wanted = ["One\ntwo\n\n", "three \n \t\n\n", "four\r\n\r\n", "five"]
    text = "".join(wanted)
    assert parts(text, paragraph_starts(text)) == wanted
    assert paragraph_starts("") == sentence_starts("") == []


def test_long_texts_are_split_in_pieces_at_the_same_places() -> None:
    """Pieces end inside sentences, which are then split from their start on."""
    sentence = "It was seen by Mr. Jones, who ran. "
    count = 5 * chunks.PIECE_CHARACTERS // len(sentence)
    starts = sentence_starts(sentence * count)
    assert starts == [len(sentence) * n for n in range(1, count)]
    endless = "a" * (3 * chunks.PIECE_CHARACTERS)
    assert len(sentence_starts(endless)) <= 3


def test_time_is_linear_beyond_ascii() -> None:
    began = time.process_time()
    starts = sentence_starts("他来了。" * 50_000)
    assert len(starts) == 49_999
    assert time.process_time() - began < 5  # the library alone takes 14 s for the whole text
