"""`POST /align`: its replies against the engine's own vectors and maps, its limits and refusals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest

from model.artifact.manifest import Artifact
from service.api.native.align import default_layer
from service.api.native.replies import AlignReply
from service.engines.fake import FakeEngine
from tests.service.harness import AnsweringEngine, assert_problem, serving
from tests.service.with_targets import with_decoder

pytestmark = pytest.mark.anyio
PAIRS = [
    ["Don't cross the street!", "the animal was too tired ."],
    ["one", ""],
    ["  ", "street"],
    ["unbelievable [SEP] 東京", "crossing, streets\x00"],
]
WORDS = [
    ("Don't cross the street !", "the animal was too tired ."),
    ("one", ""),
    ("", "street"),
    ("unbelievable [ SEP ] 東 京", "crossing , streets\x00"),
]


@pytest.fixture(scope="module")
async def plain(artifact: Artifact, anyio_backend: str) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of an encoder without a decoder."""
    async with serving(artifact, FakeEngine(artifact.manifest.config)) as client:
        yield client


@pytest.fixture(scope="module")
def decoder_artifact(artifact: Artifact) -> Artifact:
    return with_decoder(artifact)


@pytest.fixture(scope="module")
async def decoder_client(
    decoder_artifact: Artifact, anyio_backend: str
) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of an encoder–decoder."""
    async with serving(decoder_artifact, FakeEngine(decoder_artifact.manifest.config)) as client:
        yield client


async def posted(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def tokens_of(words: list[Any], result: dict[str, Any], prefix: str = "") -> list[list[int]]:
    """Return the tokens that share a character with each word."""
    offsets = result[f"{prefix}offsets"]
    return [
        [i for i, (a, b) in enumerate(offsets) if a < word["end"] and b > word["start"]]
        for word in words
    ]


def word_scores(scores: Any, source: list[list[int]], target: list[list[int]]) -> Any:
    """Return the largest score of each pair of words; 0 without tokens."""
    found = [[scores[np.ix_(i, j)].max() if i and j else 0 for j in target] for i in source]
    return np.array(found).reshape(len(source), len(target))


def assert_result(result: dict[str, Any], words: tuple[str, str], pair: list[str]) -> None:
    """Check the words of a result, and that its parts agree."""
    for side, text, expected in zip(("source", "target"), pair, words, strict=True):
        found = result["words"][side]
        if "東" not in expected:
            assert [one["text"] for one in found] == expected.split(" " if expected else None)
        assert all(one["text"] == text[one["start"] : one["end"]] for one in found)
    links = [(one["source"], one["target"]) for one in result["alignments"]]
    assert links == sorted(set(links))
    assert result["pharaoh"] == " ".join(f"{i}-{j}" for i, j in links)
    if "matrix" in result:
        for one in result["alignments"]:
            assert one["score"] == result["matrix"][one["source"]][one["target"]]


async def test_vectors_of_two_texts_each(plain: httpx.AsyncClient) -> None:
    """The nearest token of the other text, both ways, of vectors that /encode gives."""
    reply = await posted(plain, "/align", inputs=PAIRS, method="mutual", layer=-2, matrix=True)
    AlignReply.model_validate(reply)
    assert (reply["model"], reply["backend"], reply["method"]) == ("small", "fake", "mutual")
    every = [text for pair in PAIRS for text in pair]
    encoded = await posted(plain, "/encode", inputs=every, layer=1, outputs=["tokens"])
    assert reply["usage"] == {"inputs": 4, "tokens": encoded["usage"]["tokens"]}
    sides = iter(encoded["results"])
    for result, words, pair in zip(reply["results"], WORDS, PAIRS, strict=True):
        assert_result(result, words, pair)
        source, target = next(sides), next(sides)
        owned = [
            tokens_of(result["words"][side], one)
            for side, one in (("source", source), ("target", target))
        ]
        vectors = [np.array(one["embeddings"]) for one in (source, target)]
        x, y = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in vectors)
        cosines = x @ y.T
        expected = word_scores(cosines, *owned)
        assert np.array(result["matrix"]).size == expected.size
        np.testing.assert_allclose(
            np.array(result["matrix"]).reshape(expected.shape), expected, atol=1e-6
        )
        rows, columns = slice(1, len(x) - 1), slice(1, len(y) - 1)  # without special tokens
        inner = cosines[rows, columns]
        links = {
            (i, j)
            for a in range(inner.shape[0])
            for b in range(inner.shape[1])
            if inner[a].argmax() == b and inner[:, b].argmax() == a
            for i, own in enumerate(owned[0])
            if a + 1 in own
            for j, own in enumerate(owned[1])
            if b + 1 in own
        }
        assert {(one["source"], one["target"]) for one in result["alignments"]} == links


async def test_cross_attention_of_chosen_heads(decoder_client: httpx.AsyncClient) -> None:
    """Each target token with the source's largest weight, of maps that /attention gives."""
    asked = {"layers": [2, 0], "heads": [-1, 1]}
    reply = await posted(decoder_client, "/align", inputs=PAIRS, matrix=True, **asked)
    AlignReply.model_validate(reply)
    assert reply["method"] == "cross"
    sources, targets = (list(side) for side in zip(*PAIRS, strict=True))
    maps = await posted(decoder_client, "/attention", inputs=sources, targets=targets, **asked)
    assert reply["usage"] == maps["usage"]
    every = zip(reply["results"], maps["results"], WORDS, PAIRS, strict=True)
    for result, attended, words, pair in every:
        assert_result(result, words, pair)
        source = tokens_of(result["words"]["source"], attended)
        target = tokens_of(result["words"]["target"], attended, "target_")
        weights = np.array(attended["cross_attention"]).mean(axis=(0, 1))  # [T, S]
        expected = word_scores(weights.T, source, target)
        np.testing.assert_allclose(
            np.array(result["matrix"]).reshape(expected.shape), expected, atol=1e-6
        )
        best = weights[:, 1:-1].argmax(axis=1) + 1 if weights.shape[1] > 2 else []
        links = {
            (i, j)
            for j, own in enumerate(target)
            for t in own
            for i, rows in enumerate(source)
            if len(best) and best[t] in rows
        }
        assert {(one["source"], one["target"]) for one in result["alignments"]} == links


async def test_defaults(plain: httpx.AsyncClient, decoder_client: httpx.AsyncClient) -> None:
    pair = PAIRS[:1]
    reported = await posted(plain, "/align", inputs=pair, method="mutual", layer=default_layer(2))
    assert await posted(plain, "/align", inputs=pair) == reported
    both = {"layers": [0, 1, 2], "heads": [0, 1, 2, 3]}
    reported = await posted(decoder_client, "/align", inputs=pair, method="cross", **both)
    assert await posted(decoder_client, "/align", inputs=pair) == reported
    softmax = [
        await posted(plain, "/align", inputs=pair, method="softmax", **asked)
        for asked in ({}, {"threshold": 0.001}, {"threshold": 0.9})
    ]
    assert softmax[0] == softmax[1] != softmax[2]
    assert [default_layer(layers) for layers in (1, 2, 6, 12, 24)] == [1, 1, 3, 6, 12]


async def test_words_parted_by_spaces_alone(plain: httpx.AsyncClient) -> None:
    reply = await posted(plain, "/align", inputs=[["don't! go", "a, b"]], split="spaces")
    words = reply["results"][0]["words"]
    assert [one["text"] for one in words["source"]] == ["don't!", "go"]
    assert words["target"] == [
        {"text": "a,", "start": 0, "end": 2},
        {"text": "b", "start": 3, "end": 4},
    ]


async def test_what_is_cut_is_said_and_not_aligned(plain: httpx.AsyncClient) -> None:
    body = {"inputs": [["a", "b"], ["a", "b " * 600]]}
    refused = await plain.post("/align", json=body)
    assert_problem(refused, 422, "inputs[1][1] has 602 tokens; at most 512 fit", "Tokenizer")
    reply = await posted(plain, "/align", **body, truncate=True)
    assert [one["truncated"] for one in reply["results"]] == [
        {"source": False, "target": False},
        {"source": False, "target": True},
    ]
    assert len(reply["results"][1]["words"]["target"]) == 600
    assert all(one["target"] < 510 for one in reply["results"][1]["alignments"])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"inputs": []}, "inputs: a list with at least one pair"),
        ({"inputs": ["a", "b"]}, "inputs[0] is no pair of texts"),
        ({"inputs": [["a", "b"], ["a"]]}, "inputs[1] is no pair of texts"),
        ({"method": "cross"}, "method cross: this model has no decoder"),
        ({"method": "best"}, "method: "),
        ({"method": "cross", "layer": 1}, "layer does not apply to method cross"),
        ({"layers": [1]}, "layers does not apply to method mutual"),
        ({"heads": [1]}, "heads does not apply to method mutual"),
        ({"threshold": 0.1}, "threshold does not apply to method mutual"),
        ({"method": "softmax", "threshold": 1.0}, "threshold: "),
        ({"layer": 3}, "layer 3 is not in -3 … 2"),
        ({"prompt_name": "query"}, "unknown prompt_name"),
        ({"pooling": "mean"}, "pooling: "),
    ],
)
async def test_refusals(plain: httpx.AsyncClient, body: dict[str, Any], says: str) -> None:
    response = await plain.post("/align", json={"inputs": [["a", "b"]], **body})
    assert_problem(response, 422, says=says)


async def test_heads_that_a_decoder_has_not(decoder_client: httpx.AsyncClient) -> None:
    body = {"inputs": [["a", "b"]], "heads": [4]}
    assert_problem(
        await decoder_client.post("/align", json=body),
        422,
        says="heads: 4 is not in -4 … 3 of the decoder",
    )


async def test_characters_of_both_sides_are_counted(
    artifact: Artifact, decoder_artifact: Artifact
) -> None:
    for served in (artifact, decoder_artifact):
        engine = FakeEngine(served.manifest.config)
        async with serving(served, engine, max_request_characters=10) as client:
            await posted(client, "/align", inputs=[["a" * 6, "b" * 4]])
            response = await client.post("/align", json={"inputs": [["a" * 6, "b" * 5]]})
            assert_problem(response, 422, says="the request has 11 characters; at most 10")


async def test_too_large_is_refused_before_anything_is_computed(
    artifact: Artifact, decoder_artifact: Artifact
) -> None:
    body = {"inputs": [["a " * 250, "b " * 250]], "matrix": True}
    for served in (artifact, decoder_artifact):
        engine = AnsweringEngine(lambda _: None, served.manifest.config)
        async with serving(served, engine, max_response_bytes=2**19) as client:
            assert_problem(await client.post("/align", json=body), 413, says="send fewer pairs")
            assert engine.batches == 0
