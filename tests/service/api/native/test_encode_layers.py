"""Hidden states, sparse vectors and token vectors of /encode, against two libraries."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load
from sentence_transformers import MultiVectorEncoder, SparseEncoder
from torch import Tensor
from torch.nn import functional

from model.artifact.manifest import Artifact
from service.api.wire.media import JSON_BYTES_PER_FLOAT
from tests.model.late_checkpoints import DOCUMENTS, QUERY
from tests.model.task_checkpoints import write_sparse_checkpoint
from tests.service.api.native.hooked import Hooked
from tests.service.api.tei.tasks import SPARSE, serving_task
from tests.service.harness import Client, assert_problem, serving
from tests.service.several import fake_of

pytestmark = pytest.mark.anyio


TEXTS = ["The animal didn't cross the street", "a", "because it was too tired"]
BINARY = {"accept": "application/vnd.safetensors"}
LAYERS = [2, 0, -2]
ABLATED = [(0, 1), (1, 0)]


@pytest.fixture(scope="module")
def reference(small_checkpoint: Path) -> Hooked:
    return Hooked(small_checkpoint)


def close(found: Any, wanted: Tensor) -> None:
    """Compare states, whose largest features are a few tens, within tolerance."""
    np.testing.assert_allclose(np.asarray(found, np.float32), wanted.numpy(), rtol=0, atol=1e-4)


def unit(state: Tensor) -> Tensor:
    return functional.normalize(state.mean(dim=0), dim=0)


async def encoded(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    asked = {"inputs": TEXTS, "pooling": "mean", "normalize": True}
    reply = await client.post("/encode", json=asked | body)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def test_each_layer_is_transformers(client: httpx.AsyncClient, reference: Hooked) -> None:
    found = await encoded(client, layers=LAYERS)
    assert found["layers"] == [2, 0, 1]
    for text, result in zip(TEXTS, found["results"], strict=True):
        states = torch.stack([reference.states(text)[layer] for layer in (2, 0, 1)])
        close(result["embeddings"], states)
        close(result["pooled"], torch.stack([unit(state) for state in states]))


async def test_a_layer_among_several_is_bit_for_bit_that_layer(client: httpx.AsyncClient) -> None:
    together = await encoded(client, layers=[2, 1])
    for place, layer in enumerate((2, 1)):
        alone = await encoded(client, layer=layer)
        assert "layers" not in alone
        for one, every in zip(alone["results"], together["results"], strict=True):
            assert one["embeddings"] == every["embeddings"][place]
            assert one["pooled"] == every["pooled"][place]


async def test_the_three_forms_hold_the_same_arrays(
    client: httpx.AsyncClient, tmp_path: Path
) -> None:
    body = {"inputs": TEXTS, "layers": [0, 2]}
    plain = await encoded(client, **body)
    packed = await encoded(client, encoding_format="base64", **body)
    asked = {"pooling": "mean", "normalize": True} | body
    reply = await client.post("/encode", json=asked, headers=BINARY)
    tensors = load(reply.content)
    rows, size = tensors["cu_seqlens"], tensors["pooled"].shape[-1]
    assert tensors["embeddings"].shape == (2, rows[-1], size)
    assert tensors["pooled"].shape == (2, len(TEXTS), size)
    for index, (one, other) in enumerate(zip(plain["results"], packed["results"], strict=True)):
        own = tensors["embeddings"][:, rows[index] : rows[index + 1]]
        for name, array in (("embeddings", own), ("pooled", tensors["pooled"][:, index])):
            np.testing.assert_array_equal(np.asarray(one[name], np.float32), array)
            raw = np.frombuffer(base64.b64decode(other[name]), "<f4")
            np.testing.assert_array_equal(raw.reshape(array.shape), array)
    (tmp_path / "reply").write_bytes(reply.content)
    with safe_open(tmp_path / "reply", framework="numpy") as file:
        assert file.metadata()["layers"] == "[0,2]"


async def test_dimensions_are_of_each_layer(client: httpx.AsyncClient, reference: Hooked) -> None:
    found = await encoded(client, layers=[1, 2], outputs=["pooled"], dimensions=5)
    for text, result in zip(TEXTS, found["results"], strict=True):
        means = torch.stack([reference.states(text)[layer].mean(dim=0)[:5] for layer in (1, 2)])
        close(result["pooled"], functional.normalize(means, dim=1))


@pytest.mark.usefixtures("started_torch")
@pytest.mark.parametrize("backend", ["onnx", "torch"])
async def test_ablated_heads_are_those_that_hooks_zero(
    client: httpx.AsyncClient, reference: Hooked, backend: str
) -> None:
    heads = [{"layer": layer, "head": head - 2} for layer, head in ABLATED]
    found = await encoded(client, layers=[0, 1, 2], ablate=heads, backend=backend)
    alone = await encoded(client, ablate=heads, backend=backend)
    for text, result, last in zip(TEXTS, found["results"], alone["results"], strict=True):
        states = reference.states(text, ABLATED)
        apart = (states[2] - reference.states(text)[2]).abs().max()
        assert apart > 1e-2
        close(result["embeddings"], torch.stack(states))
        close(last["embeddings"], states[2])
        close(last["pooled"], unit(states[2]))


async def test_every_layer_counts_towards_the_size_of_the_reply(artifact: Artifact) -> None:
    tokens = 100
    limit = 2 * tokens * artifact.manifest.config.hidden_size * JSON_BYTES_PER_FLOAT
    body = {"inputs": " ".join(["a"] * (tokens - 2)), "outputs": ["tokens"]}
    async with serving(artifact, fake_of(artifact), max_response_bytes=limit) as client:
        for layers, status in (([0, 1], 200), ([0, 1, 2], 413)):
            reply = await client.post("/encode", json=body | {"layers": layers})
            assert reply.status_code == status


SPARSE_TEXTS = ["the cat a b", "x", "b a the cat"]


@pytest.fixture(scope="module")
async def late(late_artifact: Artifact, anyio_backend: str) -> AsyncIterator[Client]:
    """Yield a client of a service with a tiny ColBERT."""
    async with serving(late_artifact) as client:
        yield client


async def vectors_of(client: httpx.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    reply = await client.post("/encode", json={"inputs": SPARSE_TEXTS} | body)
    assert reply.status_code == 200, reply.text
    results: list[dict[str, Any]] = reply.json()["results"]
    return results


async def tensors_of(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    reply = await client.post("/encode", json={"inputs": SPARSE_TEXTS} | body, headers=BINARY)
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
    expected = SparseEncoder(str(folder), device="cpu").encode(SPARSE_TEXTS, convert_to_tensor=True)
    async with serving(exported(folder, "splade-outputs")) as client:
        names = ["sparse", "pooled", "tokens"]
        results = await vectors_of(client, outputs=names)
        packed = await vectors_of(client, outputs=names, encoding_format="base64")
        tensors = await tensors_of(client, outputs=names)
        alone = await vectors_of(client)
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
    found = await vectors_of(late, outputs=names, **fields)
    tensors = await tensors_of(late, outputs=names, **fields)
    bounds = tensors["multivector_cu_seqlens"]
    for index, expected in enumerate(reference.encode_document(DOCUMENTS)):
        rows = np.asarray(expected.cpu())
        own = np.array(found[index]["multivector"], np.float32).reshape(-1, rows.shape[1])
        np.testing.assert_allclose(own, rows, atol=1e-5)
        np.testing.assert_array_equal(
            tensors["multivector"][bounds[index] : bounds[index + 1]], own
        )
    alone = await vectors_of(late, **fields)
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
