"""Errors, integers and pictures of every dialect, in its own form."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from fastapi import APIRouter
from starlette.responses import Response

from model.artifact.manifest import Artifact
from service.api import dialects
from service.api.dialects import Dialect
from service.api.wire.replies import error_reply
from service.app import create_app
from service.engines.onnx import OnnxEngine
from service.errors import InvalidRequest, ServiceError
from service.settings import Settings
from tests.service.api.tei.tasks import LABELS, RANKS, ScoringEngine
from tests.service.harness import Client, assert_problem, serving
from tests.service.pictures import element, picture, pictures_of
from tests.service.several import fake_of, variant

pytestmark = pytest.mark.anyio


router = APIRouter()


@router.post("/other/{name}")
async def refuse(name: str) -> None:
    """Refuse the request."""
    raise InvalidRequest(f"no {name} here")


def other_form(error: ServiceError, request_id: str) -> Response:
    body = {"other": error.detail, "id": request_id}
    return error_reply(error, json.dumps(body).encode(), "application/json")


@pytest.fixture
def other_dialect(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    added = Dialect([router], other_form)
    monkeypatch.setattr(dialects, "DIALECTS", (*dialects.DIALECTS, added))
    return


@pytest.mark.usefixtures("other_dialect")
async def test_a_dialect_brings_its_own_errors(artifact: Artifact, onnx_engine: OnnxEngine) -> None:
    settings = {"api_keys": "k", "max_body_bytes": 1000}
    key = {"authorization": "Bearer k"}
    async with serving(artifact, onnx_engine, **settings) as client:
        refused = {
            400: await client.post("/other/thing", headers=key),
            401: await client.post("/other/thing"),
            405: await client.get("/other/thing", headers=key),
            413: await client.post("/other/thing", headers=key, content=b"x" * 1001),
        }
        for status, response in refused.items():
            assert response.status_code == status
            assert response.json().keys() == {"other", "id"}
            assert response.json()["id"] == response.headers["x-request-id"]
        assert refused[401].headers["www-authenticate"].startswith("Bearer")
        assert refused[400].json()["other"] == "no thing here"
        assert_problem(await client.post("/encode", headers=key, content=b"x" * 1001), 413)
        assert_problem(await client.post("/encode"), 401)
        assert_problem(await client.get("/nowhere", headers=key), 404)


async def test_verify_is_a_route_that_can_be_left_out(
    artifact: Artifact, onnx_engine: OnnxEngine
) -> None:
    async with serving(artifact, onnx_engine, verify_route=False) as client:
        for method in ("POST", "GET", "OPTIONS"):
            assert_problem(await client.request(method, "/verify", json={"inputs": "a"}), 404)
        document = (await client.get("/openapi.json")).text
        assert "/encode" in document
        assert "/verify" not in document
        assert (await client.post("/encode", json={"inputs": "a"})).status_code == 200
        assert "verify" not in (await client.get("/")).text.lower()


@pytest.mark.usefixtures("other_dialect")
def test_a_refusal_before_the_route_is_known_has_the_form_of_its_path() -> None:
    error = InvalidRequest("not HTTP")
    assert json.loads(bytes(dialects.error_response("/other/x", error, "i").body))["other"]
    assert json.loads(bytes(dialects.error_response("", error, "i").body))["title"]


async def test_every_route_names_another_encoding_than_utf_8(
    artifact: Artifact, onnx_engine: OnnxEngine
) -> None:
    headers = {"content-type": "application/json", "authorization": "Bearer k"}
    async with serving(artifact, onnx_engine, admin_keys="k") as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
        asked = [
            (method, path.replace("{model}", "small"))
            for path, methods in paths.items()
            for method, operation in methods.items()
            if "application/json" in operation.get("requestBody", {}).get("content", ())
        ]
        assert len(asked) > 25
        for method, path in asked:
            body = '{"inputs": "hé"}'.encode("latin-1")
            reply = await client.request(method, path, content=body, headers=headers)
            assert (path, reply.status_code) == (path, 400)
            assert "the body is not UTF-8 (at byte 13): encode it as UTF-8" in reply.text


EDGES = [
    *(2**bits - below for bits in (31, 32, 63, 64) for below in (1, 0)),
    *(-1, -(2**31) - 1, -(2**63) - 1, 10**30),
]
HOLE = object()
"""Place of the integer in a body."""
PICTURE = {"inputs": element(picture()), "model": "pictures"}
TENSOR = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a b"]}
BODIES: dict[str, list[dict[str, Any]]] = {
    "/encode": [
        {"inputs": "a b", "vector_type": "int8"},
        {"inputs": ["a b", "b"], "outputs": ["pooled"], "layers": [0, 1]},
        {"inputs": "a b", "chunk": {"by": "tokens", "late": False}},
        PICTURE,
    ],
    "/attention": [{"inputs": "a b", "queries": [0], "keys": [0]}, PICTURE],
    "/attention/scores": [PICTURE],
    "/rank": [{"query": "a", "documents": ["a b", "b"], "explain": "contrast"}],
    "/v1/embeddings": [{"input": "a b", "output_dtype": "int8"}],
    "/v2/models/{model}/infer": [
        {"inputs": [TENSOR], "outputs": [{"name": name}]} for name in ("pooled", "attention")
    ],
}
"""Bodies in which more fields have an effect than in the least body that a schema allows."""


class Schemas:
    """JSON schemas of requests, and the definitions to which they refer."""

    def __init__(self, document: Any) -> None:
        self._definitions: dict[str, Any] = {**document["components"]["schemas"]}

    def resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return a schema, in place of a reference to it."""
        self._definitions.update(schema.get("$defs", {}))
        if "$ref" in schema:
            return self.resolved(self._definitions[schema["$ref"].rpartition("/")[2]])
        return schema

    def least(self, schema: dict[str, Any]) -> Any:
        """Return a value of a schema with its required fields."""
        schema = self.resolved(schema)
        if "anyOf" in schema:
            return self.least(schema["anyOf"][0])
        if schema.get("type") == "object":
            fields = schema.get("properties", {})
            return {name: self.least(fields[name]) for name in schema.get("required", [])}
        if schema.get("type") == "array":
            return [self.least(schema["items"])] * schema.get("minItems", 1)
        plain = {"integer": 1, "number": 1.0, "boolean": True}.get(schema.get("type", ""), "a b")
        return schema.get("const", schema.get("enum", [plain])[0])

    def with_holes(self, schema: dict[str, Any]) -> Iterator[Any]:
        """Yield a value of a schema for each of its numbers, with a hole in the number's place."""
        schema = self.resolved(schema)
        for form in schema.get("anyOf", ()):
            yield from self.with_holes(form)
        kind = schema.get("type")
        if kind in ("integer", "number"):
            yield HOLE
        elif kind == "object":
            whole = self.least(schema)
            for name, field in schema.get("properties", {}).items():
                yield from (whole | {name: value} for value in self.with_holes(field))
        elif kind == "array":
            items = self.least(schema)
            for value in self.with_holes(schema["items"]):
                yield from ([*items[:n], value, *items[n + 1 :]] for n in range(len(items)))


def filled(value: Any, number: int) -> Any:
    """Return a value with a number in place of its hole."""
    if isinstance(value, dict):
        return {name: filled(field, number) for name, field in value.items()}
    if isinstance(value, list):
        return [filled(item, number) for item in value]
    return number if value is HOLE else value


def requests(document: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield method, path and body or query of a request for each integer of every route."""
    schemas = Schemas(document)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for given in operation.get("parameters", []):
                for value in schemas.with_holes(given["schema"]):
                    yield method, path, {"params": {given["name"]: value}}
            body = operation.get("requestBody", {"content": {}})["content"]
            for value in schemas.with_holes(body.get("application/json", {}).get("schema", {})):
                for others in ({}, *BODIES.get(path, [])):
                    yield method, path, {"json": {**value, **others, **holed(value)}}


def holed(body: dict[str, Any]) -> dict[str, Any]:
    """Return the field with the hole."""
    return {name: value for name, value in body.items() if filled(value, 0) != filled(value, 1)}


async def test_no_integer_overflows(artifact: Artifact, onnx_engine: OnnxEngine) -> None:
    heads = [variant(artifact, "ranks", 128, RANKS), variant(artifact, "labels", 128, LABELS)]
    pictures = pictures_of(artifact)
    engines = [onnx_engine, *(ScoringEngine(own.manifest.config) for own in heads)]
    failed, paths = [], set()
    async with serving(
        [artifact, *heads, pictures],
        [*engines, fake_of(pictures)],
        token_ids="model",
        admin_keys="key",
    ) as client:
        document = (await client.get("/openapi.json")).json()
        for method, path, given in requests(document):
            paths.add(path)
            for number in EDGES:
                url, headers = path.replace("{model}", "small"), {"authorization": "Bearer key"}
                reply = await client.request(method, url, **filled(given, number), headers=headers)
                if reply.status_code >= 500:
                    failed.append((reply.status_code, path, filled(given, number)))
    assert failed == []
    assert {"/encode", "/decode", "/vocabulary", "/v2/models/{model}/infer", "/score"} <= paths


FILES = [picture(1), picture(2, kind="JPEG")]
TEXTS = [base64.b64encode(file).decode() for file in FILES]
URLS = [f"data:image/png;base64,{text}" for text in TEXTS]
PARTS = [{"type": "image_url", "image_url": {"url": url}} for url in URLS]


@pytest.fixture(scope="module")
async def pictures(artifact: Artifact, anyio_backend: str) -> AsyncIterator[Client]:
    """Yield a client of an application with a model of pictures."""
    own = pictures_of(artifact)
    async with serving(own, fake_of(own)) as client:
        yield client


async def encoded(client: Client, count: int) -> np.ndarray:
    """Return the unit vectors of /encode, which other tests compare with oracles."""
    inputs = [{"image": text} for text in TEXTS[:count]]
    body = {"inputs": inputs, "outputs": ["pooled"], "normalize": True}
    results = (await client.post("/encode", json=body)).json()["results"]
    return np.array([result["pooled"] for result in results])


ONE_MESSAGE = {"messages": [{"role": "user", "content": PARTS[:1]}]}
FORMS: list[tuple[str, dict[str, Any], int]] = [
    ("/v1/embeddings", {"input": [{"image": TEXTS[0]}, {"image": URLS[1]}]}, 2),
    ("/v1/embeddings", ONE_MESSAGE, 1),
    ("/pooling", ONE_MESSAGE | {"use_activation": True}, 1),
    ("/embeddings", {"input": URLS, "modality": "image"}, 2),
    ("/embeddings", {"input": URLS[0], "modality": "image"}, 1),
    ("/v2/embed", {"inputs": [{"content": [part]} for part in PARTS]}, 2),
    ("/v2/embed", {"images": URLS, "input_type": "image"}, 2),
    ("/v1/embed", {"images": URLS, "embedding_types": ["float"]}, 2),
]


@pytest.mark.parametrize(("path", "body", "count"), FORMS)
async def test_pictures(pictures: Client, path: str, body: dict[str, Any], count: int) -> None:
    answer = await pictures.post(path, json=body)
    assert answer.status_code == 200, answer.text
    reply = answer.json()
    if path.endswith("/embed"):
        vectors = reply["embeddings"]["float"]
        assert reply["texts"] == []
    else:
        vectors = [item.get("embedding", item.get("data")) for item in reply["data"]]
        assert reply["usage"]["prompt_tokens"] == count * 7
    np.testing.assert_allclose(vectors, await encoded(pictures, count), atol=1e-6)


TEXT = {"type": "text", "text": "two words"}
MIXED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/embeddings", {"input": [{"image": TEXTS[0]}, "two words", {"image": TEXTS[1]}]}),
    ("/v2/embed", {"inputs": [{"content": [part]} for part in (PARTS[0], TEXT, PARTS[1])]}),
]


@pytest.mark.parametrize(("path", "body"), MIXED)
async def test_texts_and_pictures_of_two_towers(
    artifact: Artifact, path: str, body: dict[str, Any]
) -> None:
    vision = pictures_of(artifact, hidden_size=artifact.manifest.config.hidden_size)
    app = create_app(Settings(engine="fake"), [dataclasses.replace(artifact, vision=vision)])
    async with app.router.lifespan_context(app), Client(app) as client:
        reply = (await client.post(path, json=body)).json()
        inputs = [{"image": TEXTS[0]}, "two words", {"image": TEXTS[1]}]
        wanted = {"inputs": inputs, "outputs": ["pooled"], "normalize": True}
        expected = (await client.post("/encode", json=wanted)).json()
        damaged = await client.post("/v1/embeddings", json={"input": ["a", {"image": "QQ=="}]})
    if path == "/v2/embed":
        assert reply["texts"] == ["two words"]
        vectors = reply["embeddings"]["float"]
    else:
        vectors = [item["embedding"] for item in reply["data"]]
        assert reply["usage"]["total_tokens"] == expected["usage"]["tokens"] == 7 + 4 + 7
    pooled = [result["pooled"] for result in expected["results"]]
    np.testing.assert_allclose(vectors, pooled, atol=1e-6)
    assert damaged.json()["error"]["message"].startswith("input[1]: ")


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/v1/embeddings", {"input": ["a"]}, "input[0] is a text, and the model reads pictures"),
        ("/v1/embeddings", {"input": [{"image": "!"}]}, "input[0].image is not base64"),
        ("/v1/embeddings", {"input": {"image": "https://a.b/c"}}, "this service fetches no pict"),
        (
            "/v1/embeddings",
            {"input": [{"image": TEXTS[0]}], "late_chunking": True},
            "late_chunking: input[0] is a picture",
        ),
        (
            "/pooling",
            ONE_MESSAGE | {"truncate_prompt_tokens": 3},
            "truncate_prompt_tokens: pictures are not cut",
        ),
        ("/embeddings", {"input": [TEXTS[0]], "modality": "image"}, "input[0]: a data URL"),
        ("/embeddings", {"input": URLS[0], "modality": "audio"}, "does not embed audio"),
        ("/v2/embed", {"images": URLS, "max_tokens": 3}, "max_tokens: pictures are not cut"),
        ("/embed", {"inputs": "a"}, "inputs[0] is a text, and the model reads pictures"),
        ("/embed", {"inputs": {"image": TEXTS[0]}}, "a text, a list of token ids"),
    ],
)
async def test_refusals(pictures: Client, path: str, body: dict[str, Any], says: str) -> None:
    refused = await pictures.post(path, json=body)
    assert refused.status_code in (400, 422)
    assert says in refused.text


async def test_models_of_texts_refuse_pictures(client: Client) -> None:
    for path, body, _ in FORMS:
        refused = await client.post(path, json=body)
        assert refused.status_code in (400, 422), path
        assert any(
            says in refused.text
            for says in (
                "is a picture, and the model reads only texts",
                "messages: this model reads texts only",
                "does not embed image",
            )
        ), refused.text
