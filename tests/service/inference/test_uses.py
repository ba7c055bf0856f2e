"""Artifact with one failed use in its verification: the other use is served as before."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest

from model.artifact.manifest import Artifact
from model.artifact.verification import Verdict
from model.config.precision import Use
from service.engines.onnx import OnnxEngine
from tests.service.harness import assert_problem, serving

FIGURE = "least cosine 0.8120 (at least 0.9), over 154 texts"
WHAT = {"vectors": "vectors", "heads": "attention weights and hidden states"}
OF_HEADS: list[tuple[str, dict[str, Any]]] = [
    ("/attention", {"inputs": "the cat"}),
    ("/attention/scores", {"inputs": "the cat", "layer": 0, "head": 0}),
    ("/encode", {"inputs": "the cat", "outputs": ["tokens"]}),
    ("/encode", {"inputs": "the cat"}),
    ("/encode", {"inputs": "the cat", "outputs": ["pooled"], "layer": 0}),
    ("/encode", {"inputs": "the cat", "outputs": ["pooled"], "pooling": "max"}),
    ("/encode", {"inputs": "the cat", "outputs": ["pooled"], "layers": [0, 2]}),
    ("/embed_all", {"inputs": "the cat"}),
    ("/explain", {"inputs": [["the cat", "a"]]}),
]
OF_VECTORS: list[tuple[str, dict[str, Any]]] = [
    ("/encode", {"inputs": "the cat", "outputs": ["pooled"]}),
    ("/embed", {"inputs": "the cat"}),
    ("/v1/embeddings", {"input": "the cat"}),
]

pytestmark = pytest.mark.anyio


def failing(artifact: Artifact, use: Use) -> Artifact:
    """Return the artifact with a manifest in which a use failed."""
    update = {use: Verdict(passed=False, failed=FIGURE)}
    record = artifact.manifest.verification.model_copy(update=update)
    manifest = artifact.manifest.model_copy(update={"verification": record})
    return replace(artifact, manifest=manifest)


Start = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def start(tiny_artifact: Artifact) -> Start:
    """Return `start(use, …)`, which runs a service of an artifact with a failed use."""

    def of(use: Use, **settings: Any) -> AbstractAsyncContextManager[httpx.AsyncClient]:
        artifact = failing(tiny_artifact, use)
        return serving(artifact, OnnxEngine(artifact, "cpu", threads=2), **settings)

    return of


@pytest.fixture
async def whole(tiny_artifact: Artifact) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(tiny_artifact, OnnxEngine(tiny_artifact, "cpu", threads=2)) as client:
        yield client


@pytest.mark.parametrize(
    ("use", "refused", "served"),
    [("heads", OF_HEADS, OF_VECTORS), ("vectors", OF_VECTORS, OF_HEADS[:3])],
)
async def test_the_use_that_failed_is_a_501_with_the_figure(
    start: Start,
    whole: httpx.AsyncClient,
    use: Use,
    refused: list[tuple[str, dict[str, Any]]],
    served: list[tuple[str, dict[str, Any]]],
) -> None:
    async with start(use) as client:
        for route, body in refused:
            reply = await client.post(route, json=body)
            assert reply.status_code == 501, (route, body, reply.text)
            assert FIGURE in reply.text
            assert f"not served for {WHAT[use]}" in reply.text
        for route, body in served:
            expected = (await whole.post(route, json=body)).json()
            assert (await client.post(route, json=body)).json() == expected, (route, body)


async def test_a_refusal_is_a_problem_that_no_retry_mends(start: Start) -> None:
    async with start("heads") as client:
        reply = await client.post("/attention", json={"inputs": "the cat"})
        problem = assert_problem(reply, 501, reply.json()["detail"], "Backend")
        assert problem["type"].endswith("not-verified")
        assert not problem["retryable"]
        info = (await client.get("/info")).json()
        assert info["verification"]["heads"] == {"passed": False, "failed": FIGURE}
        assert info["verification"]["vectors"]["passed"]


async def test_what_is_allowed_unverified_is_served(start: Start) -> None:
    async with start("heads", allow_unverified=True) as client:
        reply = await client.post("/attention", json={"inputs": "the cat", "layers": [0]})
        assert reply.status_code == 200
        maps = np.array(reply.json()["results"][0]["attention"])
        np.testing.assert_allclose(maps.sum(axis=-1), 1, atol=1e-5)
