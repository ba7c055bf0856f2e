"""Fingerprints distinguish models, and are in every reply."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from service.inference.core import Inference
from service.inference.fingerprint import fingerprint_of
from service.models.state import state_of
from tests.service.harness import serving
from tests.service.several import fake_of, variant

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
            assert answer.headers.get_list("x-model-fingerprint") == [expected], path
        refused = await client.post("/encode", json={"inputs": "a", "layer": 99})
        assert (refused.status_code, refused.headers["x-model-fingerprint"]) == (422, expected)
        refused = await client.post("/encode", content=b"{")
        assert (refused.status_code, refused.headers["x-model-fingerprint"]) == (415, expected)
        assert "x-model-fingerprint" not in (await client.get("/health")).headers


class Named(FakeEngine):
    """A fake with the name of another engine."""

    def __init__(self, artifact: Artifact, name: str) -> None:
        super().__init__(artifact.manifest.config)
        self.name = name


@pytest.mark.anyio
async def test_a_reply_has_the_fingerprint_of_the_engine_that_took_its_tasks(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where PyTorch takes over, or gives back, after the request has come."""
    int8 = variant(artifact, "int8", 12, precision="int8")
    engine = Named(int8, "onnx")
    own = fingerprint_of(int8, engine.provider)
    other = fingerprint_of(int8, engine.provider, stand_in=True)
    tokenize = Inference.prepare
    async with serving(int8, engine) as client:
        engines = state_of(client.app).models.default.inference.engines
        monkeypatch.setitem(engines._factories, "torch", lambda: Named(int8, "torch"))

        async def found(turns_to: str | None, *, before: bool, **asked: Any) -> str:
            """The reply's fingerprint where another engine serves around the tokenising."""

            async def turning(*arguments: Any) -> Any:
                if before:
                    engines.stand_in = turns_to
                prepared = await tokenize(*arguments)
                engines.stand_in = turns_to
                return prepared

            monkeypatch.setattr(Inference, "prepare", turning)
            answer = await client.post("/encode", json={"inputs": "a"} | asked)
            assert answer.status_code == 200, answer.text
            expected = fingerprint_of(
                int8, engine.provider, stand_in=answer.json()["backend"] == "torch"
            )
            assert answer.headers["x-model-fingerprint"] == expected
            return expected

        assert await found("torch", before=True) == other
        assert await found(None, before=False) == other
        assert await found("torch", before=False) == own
        assert await found("torch", before=True, backend="onnx") == own
        assert await found(None, before=True, backend="torch") == other
