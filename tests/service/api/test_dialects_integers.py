"""Integers of any size are answered or refused, in every field of every route.

The cases are generated from the service's OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from model.artifact.manifest import Artifact
from service.engines.onnx import OnnxEngine
from tests.service.api.tei.tasks import LABELS, RANKS, ScoringEngine
from tests.service.harness import serving
from tests.service.pictures import element, picture, pictures_of
from tests.service.several import fake_of, variant

pytestmark = pytest.mark.anyio
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
