"""`sparse` and `multivector` of /encode, against sentence-transformers and /embed_sparse."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load
from sentence_transformers import MultiVectorEncoder, SparseEncoder

from model.artifact.manifest import Artifact
from tests.model.late_checkpoints import DOCUMENTS, QUERY
from tests.model.task_checkpoints import write_sparse_checkpoint
from tests.service.api.tei.tasks import SPARSE, serving_task
from tests.service.harness import Client, assert_problem, serving

pytestmark = pytest.mark.anyio
BINARY = {"accept": "application/vnd.safetensors"}
TEXTS = ["the cat a b", "x", "b a the cat"]


@pytest.fixture(scope="module")
async def late(late_artifact: Artifact, anyio_backend: str) -> AsyncIterator[Client]:
    """Yield a client of a service with a tiny ColBERT."""
    async with serving(late_artifact) as client:
        yield client


async def encoded(client: httpx.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    reply = await client.post("/encode", json={"inputs": TEXTS} | body)
    assert reply.status_code == 200, reply.text
    results: list[dict[str, Any]] = reply.json()["results"]
    return results


async def tensors_of(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    reply = await client.post("/encode", json={"inputs": TEXTS} | body, headers=BINARY)
    assert reply.status_code == 200, reply.text
    tensors: dict[str, Any] = load(reply.content)
    return tensors


def decoded(text: str, dtype: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype)


async def test_sparse_vectors_are_sentence_transformers(
    exported: Callable[..., Artifact], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Other outputs of the same pass equal those asked for alone, and all forms are equal."""
    folder = write_sparse_checkpoint(tmp_path_factory.mktemp("splade") / "model")
    expected = SparseEncoder(str(folder), device="cpu").encode(TEXTS, convert_to_tensor=True)
    async with serving(exported(folder, "splade-outputs")) as client:
        names = ["sparse", "pooled", "tokens"]
        results = await encoded(client, outputs=names)
        packed = await encoded(client, outputs=names, encoding_format="base64")
        tensors = await tensors_of(client, outputs=names)
        alone = await encoded(client)
        assert (await client.get("/info")).json()["outputs"] == ["tokens", "pooled", "sparse"]
        (served,) = (await client.get("/v1/models")).json()["data"]
        assert served["outputs"] == ["tokens", "pooled", "sparse"]
    for index, (dense, own) in enumerate(zip(expected.to_dense(), results, strict=True)):
        assert own["sparse"]["indices"] == dense.nonzero()[:, 0].tolist()
        values = own["sparse"]["values"]
        np.testing.assert_allclose(values, dense[dense != 0], atol=1e-5)
        start, end = tensors["sparse_cu_seqlens"][index : index + 2]
        np.testing.assert_array_equal(tensors["sparse_values"][start:end], np.float32(values))
        assert tensors["sparse_indices"][start:end].tolist() == own["sparse"]["indices"]
        other = packed[index]["sparse"]
        assert decoded(other["values"], "<f4").tolist() == np.float32(values).tolist()
        assert decoded(other["indices"], "<i4").tolist() == own["sparse"]["indices"]
        assert own["pooled"] == alone[index]["pooled"]
        assert own["embeddings"] == alone[index]["embeddings"]


async def test_token_vectors_are_sentence_transformers(late: Client, late_checkpoint: Path) -> None:
    reference = MultiVectorEncoder(str(late_checkpoint), device="cpu")
    names = ["multivector", "pooled"]
    fields = {"inputs": DOCUMENTS, "prompt_name": "document"}
    found = await encoded(late, outputs=names, **fields)
    tensors = await tensors_of(late, outputs=names, **fields)
    bounds = tensors["multivector_cu_seqlens"]
    for index, expected in enumerate(reference.encode_document(DOCUMENTS)):
        rows = np.asarray(expected.cpu())
        own = np.array(found[index]["multivector"], np.float32).reshape(-1, rows.shape[1])
        np.testing.assert_allclose(own, rows, atol=1e-5)
        np.testing.assert_array_equal(
            tensors["multivector"][bounds[index] : bounds[index + 1]], own
        )
    alone = await encoded(late, **fields)
    assert [own["pooled"] for own in found] == [own["pooled"] for own in alone]


async def test_a_query_has_expansion_tokens(late: Client, late_checkpoint: Path) -> None:
    reference = MultiVectorEncoder(str(late_checkpoint), device="cpu")
    expected = np.asarray(reference.encode_query([QUERY])[0].cpu())
    fields = {"inputs": QUERY, "prompt_name": "query", "outputs": ["multivector"]}
    reply = await late.post("/encode", json=fields)
    (result,) = reply.json()["results"]
    np.testing.assert_allclose(result["multivector"], expected, atol=1e-5)
    assert len(result["tokens"]) < len(expected)
    assert int(reply.headers["x-compute-tokens"]) == len(expected)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"outputs": ["sparse"]}, "late has no sparse: its outputs are tokens, pooled, multivec"),
        ({"outputs": ["multivector"]}, "set `prompt_name` to query or document"),
        (
            {"outputs": ["multivector", "tokens"], "prompt_name": "query"},
            "expansion tokens, which tokens and pooled lack: ask for it alone",
        ),
        ({"outputs": ["multivector"], "prompt_name": "document", "layer": 0}, "leave out `layer`"),
        (
            {"outputs": ["multivector"], "prompt_name": "document", "overflow": "windows"},
            "multivector of long texts is not computed in windows: set `overflow` to truncate",
        ),
    ],
)
async def test_what_does_not_fit_is_refused(
    late: Client, body: dict[str, Any], problem: str
) -> None:
    reply = await late.post("/encode", json={"inputs": "a"} | body)
    assert_problem(reply, 422)
    assert problem in reply.json()["detail"]


async def test_a_whole_vocabulary_is_predicted(artifact: Artifact) -> None:
    async with serving_task(artifact, SPARSE, max_response_bytes=1000) as client:
        reply = await client.post("/encode", json={"inputs": ["a"] * 20, "outputs": ["sparse"]})
        assert_problem(reply, 413)
