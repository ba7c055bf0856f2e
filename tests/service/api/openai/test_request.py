"""Fields of `POST /v1/embeddings` from Jina and vLLM."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest

from model.artifact.manifest import Artifact
from service.engines.onnx import OnnxEngine
from tests.service.api.openai.test_embeddings import TEXTS, URL, vectors
from tests.service.harness import Client, serving
from tests.service.several import variant

pytestmark = pytest.mark.anyio
PROMPTS = {"query": "query: ", "document": "passage: ", "text-matching": "same? "}


@pytest.fixture(scope="module")
async def prompted(
    artifact: Artifact, onnx_engine: OnnxEngine, anyio_backend: str
) -> AsyncIterator[Client]:
    """Yield a client of the same model with prompts."""
    sentence = artifact.manifest.sentence.model_copy(update={"prompts": PROMPTS})
    size = artifact.manifest.config.hidden_size
    async with serving(variant(artifact, "prompted", size, sentence=sentence), onnx_engine) as it:
        yield it


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({"task": "retrieval.query"}, "query: "),
        ({"task": "retrieval.passage"}, "passage: "),
        ({"task": "text-matching"}, "same? "),
        ({"task": "query"}, "query: "),
        ({"task": "classification"}, ""),
        ({"task": None}, ""),
    ],
)
async def test_a_task_is_the_checkpoints_prompt(
    prompted: Client, fields: dict[str, Any], prompt: str
) -> None:
    expected = await vectors(prompted, [prompt + text for text in TEXTS])
    np.testing.assert_allclose(await vectors(prompted, TEXTS, **fields), expected, atol=1e-6)


async def read(client: httpx.AsyncClient, **fields: Any) -> list[Any]:
    answer = await client.post(URL, json={"input": TEXTS, **fields})
    assert answer.status_code == 200, answer.text
    return [one["embedding"] for one in answer.json()["data"]]


async def test_bits_are_the_signs(client: httpx.AsyncClient) -> None:
    """numpy is the oracle; `binary` is 128 less, as Jina and Cohere have it."""
    expected = np.packbits(await vectors(client, TEXTS) > 0, axis=1)
    np.testing.assert_array_equal(await read(client, embedding_type="ubinary"), expected)
    signed = expected.astype(int) - 128
    np.testing.assert_array_equal(await read(client, embedding_type="binary"), signed)


async def test_types_of_floats(client: httpx.AsyncClient) -> None:
    expected = await vectors(client, TEXTS)
    np.testing.assert_array_equal(await vectors(client, TEXTS, embedding_type="float"), expected)
    for fields in (
        {"embedding_type": "base64"},
        {"embedding_type": "float", "encoding_format": "base64"},
    ):
        assert all(isinstance(one, str) for one in await read(client, **fields))
        np.testing.assert_array_equal(await vectors(client, TEXTS, **fields), expected)


async def test_lengths_are_the_checkpoints_where_unit_vectors_are_not_wanted(
    client: httpx.AsyncClient,
) -> None:
    body = {"inputs": TEXTS, "outputs": ["pooled"], "normalize": False}
    results = (await client.post("/encode", json=body)).json()["results"]
    expected = np.array([one["pooled"] for one in results], np.float32)
    for fields in ({"normalized": False}, {"use_activation": False}):
        np.testing.assert_allclose(await vectors(client, TEXTS, **fields), expected, atol=1e-6)


async def test_long_texts_are_cut_where_that_is_asked_for(client: httpx.AsyncClient) -> None:
    long = "a " * 600
    fits = await vectors(client, "a " * 510)
    for fields in ({"truncate": True}, {"truncate_prompt_tokens": -1}):
        np.testing.assert_allclose(await vectors(client, long, **fields), fits, atol=1e-6)
    few = await vectors(client, "a b c d e", truncate_prompt_tokens=4)
    np.testing.assert_allclose(few, await vectors(client, "a b"), atol=1e-6)
    left = {"truncate_prompt_tokens": 4, "truncation_side": "left"}
    few = await vectors(client, "a b c d e", **left)
    np.testing.assert_allclose(few, await vectors(client, "d e"), atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"task": "poetry"}, "task"),
        ({"input_type": "query"}, "input_type"),
        ({"late_chunking": True, "truncate_prompt_tokens": 5}, "late_chunking"),
        ({"embedding_type": "int8"}, "embedding_type"),
        ({"output_dtype": "binary"}, "output_dtype"),
        ({"embedding_type": "binary", "encoding_format": "base64"}, "embedding_type"),
        ({"embedding_type": "binary", "dimensions": 12}, "dimensions"),
        ({"output_dimension": 16}, "output_dimension"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"normalize": False}, "normalize"),
        ({"prompt_name": "query"}, "prompt_name"),
    ],
)
async def test_refusals_name_the_field(
    client: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    answer = await client.post(URL, json={"input": "a", **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
