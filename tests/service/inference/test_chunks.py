"""Chunks, sentences, windows and spans of texts."""

from __future__ import annotations

import itertools
import random
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from model.artifact.manifest import Artifact
from service.engines.onnx import OnnxEngine
from service.errors import InputTooLong, Unprocessable
from service.inference.long_texts import windows_of
from service.inference.outputs import chunks
from service.inference.outputs import spans as text_spans
from service.inference.outputs.chunks import (
    ChunkKind,
    ChunkOptions,
    chunks_of,
    paragraph_starts,
    sentence_starts,
)
from service.inference.outputs.spans import OwnTokens, spans_of
from service.inference.tokenization.text import Text, places_of
from tests.service.harness import assert_problem, serving, tokenized

pytestmark = pytest.mark.anyio


def by_characters(text: str) -> Text:
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


WORDS, LETTERS = "Ab cd ef. Gh ij kl mn.", "abcdefghij"
REPEATED = "Aa bb. Cc. Dd. Ee ff gg hh. Ii."
PARTS = "Aa bb. Cc.\n\nDd ee. Ff gg.\n\nHh. Ii."


@pytest.mark.parametrize(
    ("text", "by", "size", "overlap", "wanted"),
    [
        # "Ab" is a token, and so is each mark
        (WORDS, "tokens", 3, 0, ["Ab cd", "ef. Gh", "ij kl", "mn."]),
        (WORDS, "tokens", 4, 2, ["Ab cd ef.", "ef. Gh ij", "Gh ij kl", "ij kl mn."]),
        (WORDS, "sentences", 7, 0, ["Ab cd ef.", "Gh ij kl mn."]),
        (WORDS, "sentences", 20, 0, [WORDS]),
        (WORDS, "sentences", 4, 0, ["Ab cd ef.", "Gh ij kl", "mn."]),
        # a sentence is repeated whole or not at all
        (REPEATED, "sentences", 8, 4, ["Aa bb. Cc. Dd.", "Dd. Ee ff gg hh.", "Ii."]),
        (REPEATED, "sentences", 6, 2, ["Aa bb. Cc.", "Cc. Dd.", "Ee ff gg hh.", "Ii."]),
        # paragraphs come before sentences
        (PARTS, "paragraphs", 8, 0, ["Aa bb. Cc.", "Dd ee. Ff gg.", "Hh. Ii."]),
        (PARTS, "paragraphs", 4, 0, ["Aa bb.", "Cc.", "Dd ee.", "Ff gg.", "Hh. Ii."]),
        (PARTS, "paragraphs", 30, 0, [PARTS]),
        # a text without spaces is cut between tokens
        (LETTERS, "tokens", 3, 0, ["abcdef", "ghij"]),
        (LETTERS, "sentences", 2, 0, ["abcd", "efgh", "ij"]),
        (LETTERS, "tokens", 2, 1, ["abcd", "cdef", "efgh", "ghij"]),
        (" ", "tokens", 256, 32, []),
    ],
)
def test_chunks_end_at_their_kind_of_part(
    text: str, by: Any, size: int, overlap: int, wanted: list[str]
) -> None:
    assert pieces(text, by, size, overlap) == wanted


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


LONG = "The animal was tired. It didn't cross the street, so it slept.\n\nMr. Li saw it there. " * 4
TEXTS = [LONG, "A short one.", ""]
CHUNK = {"by": "sentences", "size": 16, "overlap": 8}


@pytest.fixture(scope="module")
async def client(
    artifact: Artifact, onnx_engine: OnnxEngine, anyio_backend: str
) -> AsyncIterator[httpx.AsyncClient]:
    limits = {"max_length": 24, "max_client_batch_size": 20}
    async with serving(artifact, onnx_engine, **limits) as client:
        yield client


async def encoded(client: httpx.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    reply = await client.post("/encode", json={"pooling": "mean"} | body)
    assert reply.status_code == 200, reply.text
    found: list[dict[str, Any]] = reply.json()["results"]
    return found


async def test_late_chunks_are_spans_of_the_whole_text(client: httpx.AsyncClient) -> None:
    asked = {"inputs": TEXTS, "overflow": "windows", "layers": [1, 2]}
    found = await encoded(client, **asked, chunk=CHUNK)
    assert [len(result["spans"]) for result in found] == [9, 1, 0]
    wanted = [
        "It didn't cross the street, so it slept.",
        "Mr. Li saw it there. The animal was tired.",
    ]
    assert [LONG[start:end] for start, end in found[0]["spans"][1:3]] == wanted
    spans = [result["spans"] for result in found]
    assert found == await encoded(client, **asked, spans=spans)


@pytest.mark.parametrize("other", [{}, {"layers": [0, 2], "dimensions": 8}, {"pooling": "cls"}])
async def test_other_chunks_equal_inputs_of_their_own(
    client: httpx.AsyncClient, other: dict[str, Any]
) -> None:
    found = await encoded(client, inputs=TEXTS, chunk=CHUNK | {"late": False}, **other)
    for text, result in zip(TEXTS, found, strict=True):
        assert not {"pooled", "embeddings", "windows"} & result.keys()
        for place, (start, end) in enumerate(result["spans"]):
            (alone,) = await encoded(client, inputs=text[start:end], outputs=["pooled"], **other)
            own = np.array(result["span_vectors"])[..., place, :]
            np.testing.assert_array_equal(own, alone["pooled"])
    assert len(found[0]["tokens"]) > 24
    assert found[2]["spans"] == found[2]["span_vectors"] == [] or "layers" in other


async def test_the_binary_form_and_types_of_chunks(client: httpx.AsyncClient) -> None:
    body = {"inputs": TEXTS, "pooling": "mean", "chunk": CHUNK | {"late": False}}
    accept = {"accept": "application/vnd.safetensors"}
    binary = body | {"vector_type": "ubinary"}
    tensors = load((await client.post("/encode", json=binary, headers=accept)).content)
    floats = load((await client.post("/encode", json=body, headers=accept)).content)
    assert tensors["span_cu_seqlens"].tolist() == [0, 9, 10, 10]
    signs = np.packbits(floats["span_vectors"] > 0, axis=-1)
    np.testing.assert_array_equal(tensors["span_vectors"], signs)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"chunk": CHUNK, "spans": [[[0, 1]]]}, "spans and chunk exclude each other"),
        ({"chunk": CHUNK | {"overlap": 9}}, "overlap 9 is more than half of size 16"),
        ({"chunk": CHUNK, "pooling": "cls"}, 'the pooling "cls" takes the first token'),
        ({"chunk": CHUNK, "inputs": [["a", "b"]]}, "inputs[0] is a pair"),
        ({"chunk": {"by": "tokens", "size": 23, "late": False}}, "set `size` to at most 22"),
        (
            {"chunk": {"by": "tokens", "size": 2, "late": False}},
            "at most 20 are taken with `late` false",
        ),
        ({"chunk": {"by": "tokens", "late": False}, "inputs": " "}, "no input has a token"),
        ({"chunk": CHUNK | {"late": False}, "outputs": ["pooled"]}, "outputs is of a pass"),
        ({"chunk": CHUNK | {"late": False}, "overflow": "windows"}, "overflow is of a pass"),
        ({"chunk": {"size": 16}}, "chunk.by"),
        ({"chunk": {"by": "words"}}, "chunk.by"),
        ({"chunk": {"by": "tokens", "size": 0}}, "chunk.size"),
    ],
)
async def test_invalid_chunks_are_refused(
    client: httpx.AsyncClient, body: dict[str, Any], says: str
) -> None:
    asked = {"inputs": LONG, "pooling": "mean"} | body
    assert_problem(await client.post("/encode", json=asked), 422, says)


async def test_late_chunks_of_a_long_text_need_windows(client: httpx.AsyncClient) -> None:
    body = {"inputs": LONG, "pooling": "mean", "chunk": CHUNK}
    says = "at most 24 fit"
    assert_problem(await client.post("/encode", json=body), 422, says, "Tokenizer")
    (cut,) = await encoded(client, inputs=LONG, chunk=CHUNK, overflow="truncate")
    assert cut["spans"][-1][1] == cut["offsets"][-2][1]


@pytest.mark.parametrize("own", [7, 8, 9, 20, 21, 200])
@pytest.mark.parametrize(("head", "tail"), [(1, 1), (0, 0), (3, 1), (1, 0)])
def test_each_token_is_taken_where_it_is_farthest_from_an_edge(
    own: int, head: int, tail: int
) -> None:
    text, limit = tokenized(head + own + tail), 8 + head + tail
    text.special_tokens_mask = bytes([1] * head + [0] * own + [1] * tail)
    windows = windows_of(text, limit, "inputs[0]")
    assert len(windows) == (1 if own <= 8 else 1 + -(-(own - 8) // 6))
    assert [len(window.tokens) for window in windows] == [min(limit, head + own + tail)] * len(
        windows
    )
    taken = {}
    for number, window in enumerate(windows):
        assert window.tokens[:head].tolist() == list(range(head))
        kept = range(window.kept.start, window.kept.stop)
        size = len(kept)
        assert window.tokens[window.first : window.first + size].tolist() == list(kept)
        taken |= dict.fromkeys(kept, number)
    assert list(taken) == list(range(head + own + tail))  # each once, in order
    for token in range(head, head + own):
        room = []
        for number, window in enumerate(windows):
            held = window.tokens[head : len(window.tokens) - tail]
            before = token - held[0] if number else np.inf
            after = held[-1] - token if number < len(windows) - 1 else np.inf
            room.append(min(before, after))
        assert room[taken[token]] == max(room)


def test_windows_are_linear_in_the_text() -> None:
    text = tokenized(100_002)
    text.special_tokens_mask = bytes([1] + [0] * 100_000 + [1])
    windows = windows_of(text, 256, "inputs[0]")
    assert sum(len(window.tokens) for window in windows) < 1.36 * 100_000


def test_a_prompt_that_fills_the_window_is_refused() -> None:
    text = tokenized(20)
    text.special_tokens_mask = bytes([1] * 7 + [0] * 12 + [1])
    assert len(windows_of(text, 12, "inputs[3]")) > 1
    with pytest.raises(InputTooLong, match=r"inputs\[3\]: .* leave 3 of 11 tokens of a window"):
        windows_of(text, 11, "inputs[3]")


def text_of(places: list[tuple[int, int]], special: list[int]) -> Text:
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
