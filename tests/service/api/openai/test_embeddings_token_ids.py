"""Token ids in OpenAI's form: refused, taken as the model's own, or decoded as OpenAI's."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
import tiktoken

from model.artifact.manifest import Artifact
from service.engines.onnx import OnnxEngine
from tests.service.api.openai.test_embeddings import TEXTS, URL, vectors
from tests.service.harness import serving
from tests.service.inference.tokenization.test_cl100k import BYTES

pytestmark = pytest.mark.anyio


async def token_ids(client: httpx.AsyncClient) -> list[list[int]]:
    """Return the ids of each text, special tokens included."""
    body = {"inputs": TEXTS, "outputs": ["pooled"]}
    return [one["token_ids"] for one in (await client.post("/encode", json=body)).json()["results"]]


@pytest.mark.parametrize("given", [[101, 7592, 102], [[101, 102]], ["a", [5]]])
async def test_ids_are_refused_by_default(client: httpx.AsyncClient, given: Any) -> None:
    answer = await client.post(URL, json={"input": given})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "input")
    for hint in ("check_embedding_ctx_length=False", "--token-ids model", "--token-ids cl100k"):
        assert hint in error["message"]


async def test_ids_of_the_model_are_its_texts(artifact: Artifact, onnx_engine: OnnxEngine) -> None:
    """With their special tokens or without; and they are counted."""
    async with serving(artifact, onnx_engine, token_ids="model") as client:
        ids, expected = await token_ids(client), await vectors(client, TEXTS)
        found = await vectors(client, ids)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        bare = [one[1:-1] for one in ids]
        np.testing.assert_allclose(await vectors(client, bare), expected, atol=1e-6)
        np.testing.assert_allclose(await vectors(client, bare[0]), expected[:1], atol=1e-6)
        mixed = await vectors(client, [ids[0], TEXTS[1]])
        np.testing.assert_allclose(mixed, expected[:2], atol=1e-6)
        answer = await client.post(URL, json={"input": [bare[0], [7592]]})
        assert answer.json()["usage"]["prompt_tokens"] == len(ids[0]) + 3


async def test_ids_that_no_text_has_are_computed_as_they_are(
    artifact: Artifact, onnx_engine: OnnxEngine
) -> None:
    """A word piece that continues no word; decoded, it would be read as other tokens."""
    async with serving(artifact, onnx_engine, token_ids="model") as client:
        (found,) = (await client.post("/tokenize", json={"inputs": "embeddings"})).json()
        continuing = found[2]["id"]
        answer = await client.post(URL, json={"input": [continuing]})
        assert answer.json()["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([10**6], "input[0] has the token id 1000000"),
        ([-1], "input: token id -1 is negative"),
        ([101, 7592], "some special tokens of the model and not all"),
        ([7592] * 511, "input[0] has 513 tokens; at most 512 fit"),
    ],
)
async def test_ids_that_cannot_be_computed_are_refused(
    artifact: Artifact, onnx_engine: OnnxEngine, given: list[int], says: str
) -> None:
    async with serving(artifact, onnx_engine, token_ids="model") as client:
        answer = await client.post(URL, json={"input": given})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")
        assert says in answer.json()["error"]["message"]
        cut = {"input": [7592] * 511, "truncate_prompt_tokens": -1}
        assert (await client.post(URL, json=cut)).json()["usage"]["prompt_tokens"] == 512


async def test_ids_of_openai_are_decoded(
    artifact: Artifact, onnx_engine: OnnxEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiktoken, "get_encoding", lambda _: BYTES)
    async with serving(artifact, onnx_engine, token_ids="cl100k") as client:
        expected = await vectors(client, TEXTS)
        found = await vectors(client, [BYTES.encode(text) for text in TEXTS])
        np.testing.assert_allclose(found, expected, atol=1e-6)
        many = [BYTES.encode("the water " * 20)] * 9  # more than are decoded on the loop
        assert len(await vectors(client, many)) == 9
        answer = await client.post(URL, json={"input": ["a", [10**6]]})
        assert "input[1]: a token id is not of cl100k_base" in answer.text
