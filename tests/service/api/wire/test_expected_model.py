"""The 409 of a request that expects another model's fingerprint."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from model.artifact.manifest import Artifact
from service.inference.core import Inference
from service.inference.fingerprint import fingerprint_of
from service.inference.tokenization.tokenizer import TextTokenizer
from service.models.state import state_of
from tests.service.harness import serving
from tests.service.inference.test_fingerprint import ROUTES, Named
from tests.service.several import fake_of, variant

pytestmark = pytest.mark.anyio
OTHER = "0123456789abcdef"
ERROR_TEXT = {
    "/encode": lambda error: error["detail"],
    "/embed": lambda error: error["error"],
    "/v1/embeddings": lambda error: error["error"]["message"],
    "/v2/embed": lambda error: error["message"],
    "/pooling": lambda error: error["error"]["message"],
    "/v2/models/any/infer": lambda error: error["error"],
}
"""Path → the message of an error in its dialect's form."""


async def test_another_expected_fingerprint_is_refused_before_the_texts_are_tokenised(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(artifact, fake_of(artifact)) as client:
        own = (await client.get("/info")).headers["x-model-fingerprint"]
        for path, body in ROUTES:
            answer = await client.post(path, json=body, headers={"x-expect-fingerprint": own})
            assert answer.status_code == 200, (path, answer.text)
        monkeypatch.delattr(TextTokenizer, "tokenize")
        for path, body in ROUTES:
            answer = await client.post(path, json=body, headers={"x-expect-fingerprint": OTHER})
            assert answer.status_code == 409, (path, answer.text)
            assert answer.headers["x-model-fingerprint"] == own
            says = ERROR_TEXT.get(path, ERROR_TEXT["/embed"])(answer.json())
            assert own in says
            assert OTHER in says
        for path in ("/v2/models/any", "/v2/models/any/ready"):
            answer = await client.get(path, headers={"x-expect-fingerprint": OTHER})
            assert answer.status_code == 409, path
        answer = await client.get("/info", headers={"x-expect-fingerprint": OTHER})
        assert answer.status_code == 200  # so that a client can find out


@pytest.mark.parametrize("value", ["", "0123", f"{OTHER}0", OTHER.upper(), "<script>"])
async def test_an_expected_fingerprint_has_the_form_of_one(
    client: httpx.AsyncClient, value: str
) -> None:
    headers = {"x-expect-fingerprint": value}
    answer = await client.post("/encode", json={"inputs": "a"}, headers=headers)
    assert answer.status_code == 422
    assert "x-expect-fingerprint must be 16 hexadecimal digits" in answer.json()["detail"]


async def test_the_fingerprint_of_the_named_engine_is_expected(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    int8 = variant(artifact, "int8", 12, precision="int8")
    engine = Named(int8, "onnx")
    own, other = (
        fingerprint_of(int8, engine.provider, stand_in=stand_in) for stand_in in (False, True)
    )
    async with serving(int8, engine) as client:
        engines = state_of(client.app).models.default.inference.engines
        monkeypatch.setitem(engines._factories, "torch", lambda: Named(int8, "torch"))
        for backend, expected, status in [
            ("torch", other, 200),
            ("torch", own, 409),
            ("onnx", own, 200),
            ("onnx", other, 409),
        ]:
            body = {"inputs": "a", "backend": backend}
            headers = {"x-expect-fingerprint": expected}
            answer = await client.post("/encode", json=body, headers=headers)
            assert answer.status_code == status, (backend, expected)
        taken_over = Inference.prepare

        async def turning(*arguments: Any) -> Any:
            engines.stand_in = "torch"
            return await taken_over(*arguments)

        monkeypatch.setattr(Inference, "prepare", turning)
        headers = {"x-expect-fingerprint": own}
        answer = await client.post("/encode", json={"inputs": "a"}, headers=headers)
        assert answer.status_code == 409
        assert answer.headers["x-model-fingerprint"] == other
