"""Routes, fields, forms and statuses against the OpenAPI documents of TEI and Infinity.

Each deliberate difference is listed with its reason; whatever else differs fails.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from service.api import dialects, documentation
from service.settings import Settings

Spec = Mapping[str, Any]
WITH_TRUNCATE = ("/embed", "/embed_all", "/embed_sparse", "/predict", "/rerank")
REQUESTS = (*WITH_TRUNCATE, "/similarity", "/tokenize", "/decode")
TEI = {
    **{f"POST {path} takes model": "a service has several models" for path in REQUESTS},
    **{
        f"POST {path}: default of truncate is None, not false": "TEI's source has the server's "
        "auto_truncate, which is our setting, too"
        for path in WITH_TRUNCATE
    },
    **{
        f"POST {path}: form of truncation_direction": "lower case is taken, as TEI's source does"
        for path in WITH_TRUNCATE
    },
    "POST /similarity: form of parameters": "lower case of truncation_direction, again",
    "POST /rerank takes weights": "hybrid scores of bge-m3, which TEI does not serve",
    "POST /v1/embeddings takes late_chunking": "Jina's clients call this path",
    "POST /embed_sparse takes method": "BM42 beside the model's own sparse vectors",
    "POST /predict takes aggregation": "classifiers of tokens, which TEI does not serve",
    "POST /predict: form of inputs": "pictures, which TEI does not read",
    **{
        f"POST /predict takes {name}": "labels for the pictures of a model with two towers"
        for name in ("labels", "template", "top_k")
    },
    "POST /v1/embeddings: form of input": "Jina's objects of texts and pictures",
    "POST /v1/embeddings needs []": "vLLM's `messages` may stand for `input`",
    "POST /predict: form of 200": "spans, which classifiers of tokens answer with",
    "GET /health: form of 200": "status in JSON, where TEI's body is empty",
    "GET /health: form of 503": "a problem, which has TEI's members and more",
    "GET /info: form of 200": "not described; its fields are held below",
    "GET /metrics: form of 200": "not described; Prometheus' own text",
    "POST /v1/embeddings lacks 422": "OpenAI's is 400",
    "POST /v1/embeddings 200 takes warnings": "counts, as in the headers",
    "POST /v1/embeddings 200 takes system_fingerprint": "OpenAI's field, of the model",
    "POST /v1/embeddings 200: form of data": "vectors of other types",
    "POST /v1/embeddings 200: form of object": "the only value",
    **{
        f"POST /v1/embeddings takes {name}": "Jina's and vLLM's clients call this path"
        for name in (
            *("embedding_type", "messages", "normalized", "task", "truncate"),
            *("truncate_prompt_tokens", "truncation_side", "use_activation"),
        )
    },
    **{
        f"POST /v1/embeddings: form of {status}": "OpenAI's own, which its clients read; TEI's "
        "is {message, code, type}"
        for status in (400, 413, 424, 429)
    },
}


INFINITY = {
    "GET / is missing": "the dashboard, where Infinity redirects to its documentation",
    "GET /models 200: form of data": "`stats` are numbers",
    "POST /embeddings: form of input": "pictures as well, in the same schema",
    "POST /embeddings: form of modality": "audio is understood, and refused by name",
    "POST /embeddings 200: form of data": "no vectors of audio or images, no matrices",
    "POST /embeddings_audio is missing": "no audio; there too replaced by `modality`",
    "POST /embeddings_image is missing": "no images; there too replaced by `modality`",
    **{
        f"POST {path}{difference}": why
        for path in ("/embeddings", "/rerank", "/classify")
        for difference, why in {
            " 200 takes warnings": "counts, as in the headers",
            ": default of model is None, not default/not-specified": "no model has that name",
            ": form of 422": "the error of the other routes beside FastAPI's",
        }.items()
    },
}
DOCUMENTS = {"tei": TEI, "infinity": INFINITY}


def document_of(shared_data: Path, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((shared_data / f"{name}-openapi.json").read_text("utf-8"))
    return document


@pytest.mark.parametrize("name", DOCUMENTS)
def test_differences_are_the_listed_ones(shared_data: Path, name: str) -> None:
    app = FastAPI()
    dialects.install(app, Settings())
    documentation.describe(app, keys=False)
    found = set(differences(document_of(shared_data, name), app.openapi()))
    assert found - DOCUMENTS[name].keys() == set()
    assert DOCUMENTS[name].keys() - found == set()


@pytest.mark.anyio
async def test_info_has_teis_fields(client: httpx.AsyncClient, shared_data: Path) -> None:
    kinds = {"string": str, "boolean": bool, "integer": int}
    info = (await client.get("/info")).json()
    schema = document_of(shared_data, "tei")["components"]["schemas"]["Info"]
    for name, field in schema["properties"].items():
        value = info[name]
        if name not in schema["required"] and value is None:
            continue
        assert isinstance(value, kinds[field["type"]] if "type" in field else dict), name
    assert info["model_type"].keys() <= {"classifier", "embedding", "reranker"}


def differences(theirs: dict[str, Any], ours: dict[str, Any]) -> Iterator[str]:
    """Return the differences, a line each."""
    for path, operations in theirs["paths"].items():
        for method, operation in operations.items():
            name = f"{method.upper()} {path}"
            own = ours["paths"].get(path, {}).get(method)
            if own is None:
                yield f"{name} is missing"
                continue
            if "requestBody" in operation:
                first = likest(theirs, body(theirs, operation["requestBody"]), set())
                second = likest(ours, body(ours, own["requestBody"]), first["properties"].keys())
                yield from of_fields(name, (theirs, first), (ours, second))
                yield from of_defaults(name, first, second)
            for status, reply in operation["responses"].items():
                if status not in own["responses"]:
                    yield f"{name} lacks {status}"
                    continue
                first = body(theirs, reply)
                fields = first.get("properties", {}).keys()
                second = likest(ours, body(ours, own["responses"][status]), fields)
                if status == "200" and "properties" in first and "properties" in second:
                    yield from of_fields(f"{name} 200", (theirs, first), (ours, second))
                elif form(theirs, first) != form(ours, second):
                    yield f"{name}: form of {status}"


def of_defaults(name: str, theirs: Spec, ours: Spec) -> Iterator[str]:
    """Return the differences of two requests' defaults and required fields."""
    for field in theirs["properties"].keys() & ours["properties"].keys():
        default, own = (default_of(one["properties"][field]) for one in (theirs, ours))
        if default != own:
            yield f"{name}: default of {field} is {own}, not {default}"
    if set(theirs.get("required", ())) != set(ours.get("required", ())):
        yield f"{name} needs {ours.get('required')}"


def likest(document: Spec, schema: Spec, fields: Collection[str]) -> Spec:
    """Return the form of a union that has most of some fields; the first of several such."""
    forms = [resolved(document, one) for one in schema.get("anyOf", schema.get("oneOf", ()))]
    return max(
        forms, key=lambda one: len({*fields} & one.get("properties", {}).keys()), default=schema
    )


def of_fields(name: str, theirs: tuple[Spec, Spec], ours: tuple[Spec, Spec]) -> Iterator[str]:
    """Return the differences of two objects' fields: names and forms."""
    first, second = theirs[1]["properties"], ours[1]["properties"]
    yield from (f"{name} lacks {field}" for field in first.keys() - second.keys())
    yield from (f"{name} takes {field}" for field in second.keys() - first.keys())
    for field in first.keys() & second.keys():
        if form(theirs[0], first[field]) != form(ours[0], second[field]):
            yield f"{name}: form of {field}"


def body(document: Spec, message: Spec) -> Spec:
    """Return the schema of a request or reply; empty without one."""
    content = message.get("content") or {}
    return resolved(document, next(iter(content.values()), {}).get("schema", {}))


def resolved(document: Spec, schema: Spec) -> Spec:
    while "$ref" in schema or len(schema.get("allOf", ())) == 1:
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        else:
            schema = schema["allOf"][0]
    return schema


def form(document: Spec, schema: Spec) -> Any:
    """Return a comparable form of a schema: a set for a union, without null."""
    schema = resolved(document, schema)
    for union in ("anyOf", "oneOf"):
        if union in schema:
            found: set[Any] = set()
            for one in schema[union]:
                inner = form(document, one)
                found |= inner if isinstance(inner, frozenset) else {inner}
            found -= {("null",)}
            return frozenset(found) if len(found) > 1 else found.pop()
    if "properties" in schema:
        fields = schema["properties"].items()
        return ("object", *sorted((name, repr_of(form(document, one))) for name, one in fields))
    bounds = [f"{name} {schema[name]}" for name in BOUNDS if name in schema]
    if "items" in schema:
        return ("array", form(document, schema["items"]), *bounds)
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    return (schema.get("type"), *bounds, *sorted(values))


BOUNDS = ("minItems", "maxItems", "maxLength", "exclusiveMinimum", "uniqueItems")


def repr_of(one: Any) -> str:
    """Return a form as text, equal for equal sets."""
    if isinstance(one, frozenset):
        return f"one of {sorted(map(repr_of, one))}"
    if isinstance(one, tuple):
        return f"({', '.join(map(repr_of, one))})"
    return str(one)


def default_of(field: Spec) -> str:
    """Return the default; TEI's document writes defaults as texts, and null for no default."""
    default = str(field.get("default")).lower()
    return "None" if default in ("none", "null") else default
