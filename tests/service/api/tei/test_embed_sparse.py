"""`POST /embed_sparse` in TEI's form: ascending, without zeros, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model.artifact.manifest import Artifact
from tests.service.api.tei.tasks import RANKS, SPARSE, scores_of, serving_task
from tests.service.harness import reserved_replies, state_of

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("inputs", ["a text", ["a text", "another", "a"]])
async def test_weights_ascend_without_zeros(artifact: Artifact, inputs: Any) -> None:
    texts = [inputs] if isinstance(inputs, str) else inputs
    expected = scores_of(artifact, SPARSE, texts)
    async with serving_task(artifact, SPARSE) as client:
        response = await client.post("/embed_sparse", json={"inputs": inputs})
    found = response.json()
    assert len(found) == len(texts)
    for values, weights in zip(found, expected, strict=True):
        assert [one["index"] for one in values] == np.flatnonzero(weights).tolist()
        assert 0 < len(values) < SPARSE.outputs
        for one in values:
            assert np.float32(one["value"]) == weights[one["index"]]


@pytest.mark.parametrize("task", [None, RANKS])
async def test_another_model_is_a_424(artifact: Artifact, task: Any) -> None:
    async with serving_task(artifact, task) as client:
        response = await client.post("/embed_sparse", json={"inputs": "a"})
    assert response.status_code == 424
    assert "serve a sparse encoder (SPLADE)" in response.json()["error"]


async def test_no_texts_are_teis_400(artifact: Artifact) -> None:
    async with serving_task(artifact, SPARSE) as client:
        response = await client.post("/embed_sparse", json={"inputs": []})
    assert response.status_code == 400
    assert response.json()["error_type"] == "Empty"


async def test_token_ids_are_texts(artifact: Artifact) -> None:
    """A list of them is one text, with the special tokens that it has itself."""
    async with serving_task(artifact, SPARSE) as client:
        expected = (await client.post("/embed_sparse", json={"inputs": "cat"})).json()
        (tokens,) = (await client.post("/tokenize", json={"inputs": "cat"})).json()
        ids = [token["id"] for token in tokens]
        assert (await client.post("/embed_sparse", json={"inputs": ids})).json() == expected
        bare = (await client.post("/embed_sparse", json={"inputs": ids[1:-1]})).json()
    assert bare != expected


@pytest.mark.parametrize("inputs", [[1, "a"], [["a"]], None, 3])
async def test_other_forms_are_refused(artifact: Artifact, inputs: Any) -> None:
    async with serving_task(artifact, SPARSE) as client:
        response = await client.post("/embed_sparse", json={"inputs": inputs})
    assert response.status_code == 422
    assert "a text, a list of token ids" in response.json()["error"]


async def test_an_unknown_prompt_is_refused(artifact: Artifact) -> None:
    async with serving_task(artifact, SPARSE) as client:
        response = await client.post("/embed_sparse", json={"inputs": "a", "prompt_name": "q"})
    assert (response.status_code, response.json()["error_type"]) == (422, "Validation")


async def test_whole_vocabularies_are_bounded_and_given_back(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight texts of 30 words of 4 bytes fit into 1024 bytes, nine do not."""
    async with serving_task(artifact, SPARSE, max_response_bytes=1024) as client:
        replies, sizes = state_of(client.app).replies, reserved_replies(client.app, monkeypatch)
        refused = await client.post("/embed_sparse", json={"inputs": ["a"] * 9})
        assert (replies.held, sizes) == (0, [])
        await client.post("/embed_sparse", json={"inputs": ["a"] * 8})
        assert (replies.held, sizes) == (0, [8 * 30 * 4])
    assert refused.status_code == 413
    assert "send fewer texts" in refused.json()["error"]


async def test_bm42_is_weighed_before_it_is_computed(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 48 tokens and two special ones may be a word, of 40 bytes."""
    monkeypatch.setattr("service.api.tei.embed_sparse.last_layer", None)  # computes
    body = {"inputs": ["cat " * 24] * 2, "method": "bm42"}
    async with serving_task(artifact, None, max_response_bytes=2000) as client:
        response = await client.post("/embed_sparse", json=body)
    assert response.status_code == 413
    assert "about 2080 bytes" in response.json()["error"]
