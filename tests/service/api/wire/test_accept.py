"""Media types, entity tags, headers of replies, float16 weights, and JSON in pieces."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
from starlette.requests import Request

from model.artifact.manifest import Artifact
from service.api.wire.json_pieces import float16_weights
from service.api.wire.media import SAFETENSORS, is_known, prefers
from service.inference.core import Inference
from service.inference.fingerprint import FINGERPRINT_HEADER, fingerprint_of
from service.inference.timings import HEADERS
from service.inference.tokenization.tokenizer import TextTokenizer
from service.models.state import state_of
from tests.service.harness import serving
from tests.service.inference.test_engine_pool import ROUTES, NamedFake
from tests.service.several import fake_of, variant

pytestmark = pytest.mark.anyio


BINARY = [
    "{st}",
    "{ST}",
    " {st} ; q=0.5 ",
    "{st};q=1.000",
    "{st};q=0.001",
    "{st}, application/json",
    "application/json, {st}",
    "application/json;q=0.5, {st};q=0.5",
    "{st}, */*",
    "*/*;q=0.8, {st};q=0.9",
    "{st};q=0.5, application/json;q=0.4, */*",
    "{st};q=0.5, */*",
    "{st};q=0.5, application/*;q=0.6, */*;q=0",
    "{st};q=0.5, text/html",
    "{st};q=0, {st};q=0.5",
    "{st};version=1;q=0.5",
    "{st};q=two",
    "{st};q=",
    "{st};q=-1",
    "{st};q=nan",
]
JSON = [
    "",
    "*/*",
    "application/*",
    "application/json",
    "{st}x",
    "x{st}",
    "text/html;type={st}",
    "{st};q=0",
    "{st}; Q=0.000",
    "{st};version=1 ;\tq=0 ",
    "{st};q=0, */*",
    "{st};q=0.5, application/json",
    "application/json;q=0.9, {st};q=0.8",
    "{st};q=0.5, application/json;q=0.6, */*;q=0.1",
]


@pytest.mark.parametrize("accept", BINARY)
def test_who_names_it_and_likes_it_no_less_gets_it(accept: str) -> None:
    asked = accept.format(st=SAFETENSORS, ST=SAFETENSORS.upper())
    assert prefers(asked, SAFETENSORS, "application/json")


@pytest.mark.parametrize("accept", JSON)
def test_everyone_else_gets_the_default(accept: str) -> None:
    assert not prefers(accept.format(st=SAFETENSORS), SAFETENSORS, "application/json")


async def test_a_reply_is_in_the_form_that_is_preferred(client: httpx.AsyncClient) -> None:
    for accepts, form in (
        ([f"{SAFETENSORS};q=0"], "application/json"),
        ([f"{SAFETENSORS};q=0.5, application/json"], "application/json"),
        ([f"application/json;q=0.5, {SAFETENSORS}"], SAFETENSORS),
        (["application/json;q=0.5", SAFETENSORS], SAFETENSORS),
        (["text/html", f"{SAFETENSORS};q=0"], "application/json"),
    ):
        headers = [("accept", accept) for accept in accepts]
        reply = await client.post("/encode", json={"inputs": "a"}, headers=headers)
        assert reply.headers["content-type"] == form, accepts


@pytest.mark.parametrize(
    ("header", "known"),
    [('"a"', True), ('W/"a"', True), ('"b", "a"', True), ('"b"', False), ("a", False), ("", False)],
)
def test_a_tag_is_known_by_itself(header: str, known: bool) -> None:
    headers = [(b"if-none-match", header.encode())]
    assert is_known(Request({"type": "http", "headers": headers}), '"a"') == known
    assert not is_known(Request({"type": "http", "headers": []}), '"a"')


async def test_every_route_of_a_model_documents_its_headers(client: httpx.AsyncClient) -> None:
    document: dict[str, Any] = (await client.get("/openapi.json")).json()
    replies = {
        path: operations["post"]["responses"]["200"]
        for path, operations in document["paths"].items()
        if "requestBody" in operations.get("post", {}) and "/repository/" not in path
    }
    assert len(replies) > 20
    for path, reply in replies.items():
        assert {FINGERPRINT_HEADER, "x-model", *HEADERS.values()} <= reply["headers"].keys(), path
        assert reply["description"], path


def ties() -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return every float16 from 0 to 1, the midpoints between neighbours, and adjacent floats."""
    halves = np.arange(0, 0x3C01, dtype=np.uint16).view(np.float16).astype(np.float32)
    points = np.concatenate([halves, (halves[1:] + halves[:-1]) / 2])
    above, below = (np.nextafter(points, np.float32(end)) for end in (2, 0))
    return np.clip(np.concatenate([points, above, below]), 0, 1)


@pytest.mark.parametrize(
    "weights",
    [
        ties(),
        np.random.default_rng(0).random((3, 200, 200), np.float32),
        np.random.default_rng(1).random(10**5, np.float32) ** 40,
        np.zeros((2, 1, 1), np.float32),
        np.ones(1, np.float32),
    ],
    ids=["ties", "ordinary", "tiny", "zero", "one"],
)
def test_it_is_what_numpy_gives(weights: np.ndarray[Any, np.dtype[np.float32]]) -> None:
    expected = weights.astype(np.float16)
    np.testing.assert_array_equal(float16_weights(weights), expected, strict=True)


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
    engine = NamedFake(int8, "onnx")
    own, other = (
        fingerprint_of(int8, engine.provider, stand_in=stand_in) for stand_in in (False, True)
    )
    async with serving(int8, engine) as client:
        engines = state_of(client.app).models.default.inference.engines
        monkeypatch.setitem(engines._factories, "torch", lambda: NamedFake(int8, "torch"))
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
