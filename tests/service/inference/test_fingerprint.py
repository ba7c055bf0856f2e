"""Fingerprints tell models apart, and stand in every reply."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from model.artifact.manifest import Artifact
from service.inference.fingerprint import fingerprint_of
from tests.service.harness import serving
from tests.service.several import fake_of

CPU = "CPUExecutionProvider"


def test_a_copy_has_the_fingerprint_and_another_artifact_does_not(artifact: Artifact) -> None:
    manifest = artifact.manifest
    found = fingerprint_of(artifact, CPU)
    assert found == fingerprint_of(replace(artifact, folder=artifact.folder.parent), CPU)
    assert found == fingerprint_of(artifact, CPU, stand_in=True)
    int8 = replace(artifact, manifest=manifest.model_copy(update={"precision": "int8"}))
    others = {
        fingerprint_of(replace(artifact, sha256="0" * 64), CPU),
        fingerprint_of(artifact, "CUDAExecutionProvider"),
        fingerprint_of(int8, CPU),
        fingerprint_of(int8, CPU, stand_in=True),
    }
    assert len(others | {found}) == 5


ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/encode", {"inputs": "a"}),
    ("/attention", {"inputs": "a"}),
    ("/tokenize", {"inputs": "a"}),
    ("/embed", {"inputs": "a"}),
    ("/v1/embeddings", {"input": "a"}),
    ("/v2/embed", {"texts": ["a"], "input_type": "clustering", "embedding_types": ["float"]}),
    ("/pooling", {"input": "a"}),
    (
        "/v2/models/any/infer",
        {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}]},
    ),
]


@pytest.mark.anyio
async def test_every_reply_of_a_model_has_its_fingerprint(artifact: Artifact) -> None:
    """Replies of every dialect, refusals by the model, and /info."""
    async with serving(artifact, fake_of(artifact)) as client:
        expected = (await client.get("/info")).json()["fingerprint"]
        assert expected == fingerprint_of(artifact, fake_of(artifact).provider)
        for path, body in ROUTES:
            answer = await client.post(path, json=body)
            assert answer.status_code == 200, (path, answer.text)
            assert answer.headers.get_list("x-fingerprint") == [expected], path
        refused = await client.post("/encode", json={"inputs": "a", "layer": 99})
        assert (refused.status_code, refused.headers["x-fingerprint"]) == (422, expected)
