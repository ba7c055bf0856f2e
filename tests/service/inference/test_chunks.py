"""Chunks of texts: sizes, overlaps and where they end."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from service.errors import Unprocessable
from service.inference import chunks
from service.inference.chunks import ChunkKind, ChunkOptions, chunks_of
from service.inference.tokenization.tokenized import TokenizedText, places_of
from tests.service.harness import tokenized


def by_characters(text: str) -> TokenizedText:
    """Return a text with a token for each run of two letters, each other letter and each mark."""
    places = [match.span() for match in re.finditer(r"\w\w?|[^\w\s]", text)]
    found = tokenized(len(places) + 2)
    found.places = places_of([(0, 0), *places, (0, 0)])
    found.special_tokens_mask = bytes([1, *[0] * len(places), 1])
    found.truncated = False
    return found


def pieces(text: str, by: ChunkKind, size: int, overlap: int = 0) -> list[str]:
    (own,) = chunks_of([text], [by_characters(text)], ChunkOptions(by, size, overlap))
    assert (own.ranges[:, 1] - own.ranges[:, 0] <= size).all()
    return [text[start:end] for start, end in own.places.tolist()]


@pytest.mark.parametrize(
    ("by", "size", "overlap", "wanted"),
    [
        # "Ab" is a token, and so is each mark
        ("tokens", 3, 0, ["Ab cd", "ef. Gh", "ij kl", "mn."]),
        ("tokens", 4, 2, ["Ab cd ef.", "ef. Gh ij", "Gh ij kl", "ij kl mn."]),
        ("sentences", 7, 0, ["Ab cd ef.", "Gh ij kl mn."]),
        ("sentences", 20, 0, ["Ab cd ef. Gh ij kl mn."]),
        ("sentences", 4, 0, ["Ab cd ef.", "Gh ij kl", "mn."]),
    ],
)
def test_chunks_end_at_their_kind_of_part(
    by: Any, size: int, overlap: int, wanted: list[str]
) -> None:
    assert pieces("Ab cd ef. Gh ij kl mn.", by, size, overlap) == wanted


def test_a_sentence_is_repeated_whole_or_not_at_all() -> None:
    text = "Aa bb. Cc. Dd. Ee ff gg hh. Ii."
    assert pieces(text, "sentences", 8, 4) == ["Aa bb. Cc. Dd.", "Dd. Ee ff gg hh.", "Ii."]
    assert pieces(text, "sentences", 6, 2) == ["Aa bb. Cc.", "Cc. Dd.", "Ee ff gg hh.", "Ii."]


def test_paragraphs_come_before_sentences() -> None:
    text = "Aa bb. Cc.\n\nDd ee. Ff gg.\n\nHh. Ii."
    assert pieces(text, "paragraphs", 8) == ["Aa bb. Cc.", "Dd ee. Ff gg.", "Hh. Ii."]
    assert pieces(text, "paragraphs", 4) == ["Aa bb.", "Cc.", "Dd ee.", "Ff gg.", "Hh. Ii."]
    assert pieces(text, "paragraphs", 30) == [text]


def test_a_text_without_spaces_is_cut_between_tokens() -> None:
    assert pieces("abcdefghij", "tokens", 3) == ["abcdef", "ghij"]
    assert pieces("abcdefghij", "sentences", 2) == ["abcd", "efgh", "ij"]
    assert pieces("abcdefghij", "tokens", 2, 1) == ["abcd", "cdef", "efgh", "ghij"]


@pytest.mark.parametrize("by", ["tokens", "sentences", "paragraphs"])
def test_every_token_is_in_a_chunk_and_chunks_advance(by: Any) -> None:
    draw = random.Random(0)
    for _ in range(100):
        words = (
            draw.choice(["ab", "abcdefg", "a", "x. ", "Yes. ", "\n\n", " ", " "]) for _ in " " * 60
        )
        text = "".join(words)
        size = draw.randint(1, 9)
        options = ChunkOptions(by, size, draw.randint(0, size // 2))
        own = by_characters(text)
        (found,) = chunks_of([text], [own], options)
        expected = 1
        for first, last in found.ranges.tolist():
            assert 0 < last - first <= size
            assert expected - options.overlap <= first <= expected < last
            expected = last
        assert expected == len(own.places) - 1


def test_texts_without_tokens_have_no_chunk() -> None:
    (found,) = chunks_of([" "], [by_characters(" ")], ChunkOptions())
    assert found.ranges.shape == found.places.shape == (0, 2)


def test_the_number_of_chunks_is_bounded() -> None:
    texts = ["ab cd", "ef gh"]
    tokens, options = [by_characters(text) for text in texts], ChunkOptions(size=1, overlap=0)
    assert [len(own.ranges) for own in chunks_of(texts, tokens, options, most=4)] == [2, 2]
    with pytest.raises(Unprocessable, match="give at least 4 chunks; at most 3 are taken"):
        chunks_of(texts, tokens, options, most=3)


PARAGRAPHS = "a\n\n"


def test_too_many_chunks_are_refused_before_any_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    text = PARAGRAPHS * 200_000
    own = by_characters(text)
    monkeypatch.setattr(chunks, "_chunks", None)  # any cutting fails
    for size in (1, 12):
        with pytest.raises(Unprocessable, match=f"at least {-(-200_000 // size)} chunks; at most"):
            chunks_of([text], [own], ChunkOptions("paragraphs", size, 0))


@pytest.mark.parametrize(("size", "overlap"), [(2, 1), (64, 32)])
def test_the_cost_of_chunks_is_linear_and_bounded(
    monkeypatch: pytest.MonkeyPatch, size: int, overlap: int
) -> None:
    """Counted are the searches for the end of a chunk, which are logarithmic each."""
    searches, end_of = list[int](), chunks._end

    def counted(*arguments: Any) -> tuple[int, int]:
        searches.append(1)
        return end_of(*arguments)

    monkeypatch.setattr(chunks, "_end", counted)
    for count in (2_000, 4_000):
        text, options = PARAGRAPHS * count, ChunkOptions("paragraphs", size, overlap)
        searches.clear()
        chunks_of([text], [by_characters(text)], options)
        assert len(searches) <= 4 * count
    text = PARAGRAPHS * chunks.MOST_SPANS * 2
    searches.clear()
    with pytest.raises(Unprocessable, match="give at least 16385 chunks; at most 16384"):
        chunks_of([text], [by_characters(text)], ChunkOptions("paragraphs", 2, 1))
    assert len(searches) <= 4 * chunks.MOST_SPANS
