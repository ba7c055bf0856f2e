"""The OpenAPI document and its pages, errors of a request's head, security schemes, and /info."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import pytest

from model.artifact.manifest import Artifact
from model.numerics.task_head import TaskConfig
from service.api.operations import model_type
from service.api.wire.replies import PROBLEMS
from service.engines.contract import BatchCost
from service.engines.fake import FakeEngine
from service.engines.onnx import OnnxEngine
from service.telemetry.requests import PROBE_PATHS
from tests.service.api.tei.tasks import LABELS, SPARSE, serving_task
from tests.service.harness import Client, assert_problem, serving
from tests.service.logged import Log
from tests.service.several import fake_of, variant

pytestmark = pytest.mark.anyio


async def test_the_documents(client: httpx.AsyncClient) -> None:
    assert "text/html" in (await client.get("/docs")).headers["content-type"]
    document: dict[str, Any] = (await client.get("/openapi.json")).json()
    assert set(document["paths"]) >= {"/encode", "/attention", "/verify", "/info", "/metrics"}
    for name in ("encode", "attention", "verify"):
        operation = document["paths"][f"/{name}"]["post"]
        request = operation["requestBody"]["content"]["application/json"]["schema"]
        assert request == {"$ref": f"#/components/schemas/{name.capitalize()}Request"}
        schema = document["components"]["schemas"][f"{name.capitalize()}Request"]
        assert schema["additionalProperties"] is False
        assert all(field["description"] for field in schema["properties"].values())
        for status, reply in operation["responses"].items():
            binary = {"application/vnd.safetensors"} if name != "verify" else set()
            good = {"application/json"} | binary
            wanted = good if status == "200" else {"application/problem+json"}
            assert set(reply["content"]) == wanted
        assert set(operation["responses"]) == {*map(str, PROBLEMS), "200"}


ADMINISTRATION = ("IndexRequest", "LoadRequest", "UnloadRequest", "ModelUpdate")
"""Bodies of models' routes, whose clients send what they mean."""


async def test_optional_fields_may_be_null(client: httpx.AsyncClient) -> None:
    """As clients send every field that they know."""
    document: dict[str, Any] = (await client.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    kind, null = "application/json", {"type": "null"}
    wanted = 0
    for operation in (method for path in document["paths"].values() for method in path.values()):
        body = operation.get("requestBody", {"content": {}})["content"].get(kind, {"schema": {}})
        for schema in body["schema"].get("anyOf", [body["schema"]]):
            fields = schemas.get(schema.get("$ref", "").rpartition("/")[2], {})
            if fields.get("title") in ADMINISTRATION:
                continue
            for name, field in fields.get("properties", {}).items():
                if name not in fields.get("required", ()):
                    assert null in field["anyOf"], (fields["title"], name)
                    wanted += 1
    assert wanted > 100


async def test_vectors_of_cohere_are_numbers(client: httpx.AsyncClient) -> None:
    document: dict[str, Any] = (await client.get("/openapi.json")).json()
    vectors = document["components"]["schemas"]["Embeddings"]["properties"]["float"]["anyOf"][0]
    assert vectors["items"]["items"] == {"type": "number"}


@pytest.mark.parametrize(("path", "others"), [("/v1/rerank", "detail"), ("/v2/rerank", "message")])
async def test_errors_in_vllms_form_are_in_the_document(
    client: httpx.AsyncClient, path: str, others: str
) -> None:
    document: dict[str, Any] = (await client.get("/openapi.json")).json()
    bad = document["paths"][path]["post"]["responses"]["400"]["content"]["application/json"]
    names = [each["$ref"].rpartition("/")[2] for each in bad["schema"]["anyOf"]]
    required = [document["components"]["schemas"][name]["required"] for name in names]
    assert [others in fields for fields in required] == [True, False]
    body = {"query": "a", "documents": ["b"], "use_activation": True, "top_n": -1}
    reply = await client.post(path, json=body)
    assert (reply.status_code, [*reply.json()]) == (400, required[1])


def assert_documented(document: dict[str, Any], template: str, reply: httpx.Response) -> None:
    operation = document["paths"][template][reply.request.method.lower()]
    content = operation["responses"][str(reply.status_code)]["content"]
    assert reply.headers["content-type"] in content


@pytest.mark.parametrize(
    ("method", "template"),
    [
        ("GET", "/v1/models/{model}"),
        ("GET", "/v2/models/{model}"),
        ("GET", "/v2/models/{model}/ready"),
        ("POST", "/v2/models/{model}/infer"),
    ],
)
async def test_unknown_names_in_paths_are_in_the_document(
    artifact: Artifact, method: str, template: str
) -> None:
    artifacts = [variant(artifact, name, 8) for name in ("a", "b")]
    async with serving(artifacts, [fake_of(one) for one in artifacts]) as client:
        document = (await client.get("/openapi.json")).json()
        for name in ("c", "org/c", "org%2Fc", "c%0Ad", "c%0A", "%0A"):
            reply = await client.request(method, template.replace("{model}", name))
            assert reply.status_code == 404
            assert_documented(document, template, reply)


@pytest.mark.parametrize("task", [None, LABELS, SPARSE], ids=["vectors", "labels", "sparse"])
async def test_models_that_cannot_answer_are_in_the_document(
    artifact: Artifact, task: TaskConfig | None
) -> None:
    lenient = {"inputs": "a", "input": ["a"], "texts": ["a"], "query": "a", "documents": ["a"]}
    bodies: dict[str, Any] = {
        "/explain": {"inputs": [["a", "b"]]},
        "/rank": {"query": "a", "documents": ["b"]},
        "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
        "/score": {"text_1": "a", "text_2": "b"},
        "/v1/score": {"text_1": "a", "text_2": "b"},
        "/v2/embed": {"texts": ["a"], "input_type": "search_query", "model": "m"},
        "/v1/embed": {"texts": ["a"], "input_type": "search_query", "model": "m"},
        "/rerank": {"query": "a", "texts": ["a"]},
    }
    for path in ("/embed", "/embed_all", "/embed_sparse", "/predict", "/v1/embeddings", "/pooling",
                 "/embeddings", "/classify", "/v1/rerank", "/v2/rerank"):  # fmt: skip
        bodies[path] = lenient
    async with serving_task(artifact, task) as client:
        document = (await client.get("/openapi.json")).json()
        for path, body in bodies.items():
            reply = await client.post(path, json=body)
            assert reply.status_code != 422, (path, reply.text)
            assert_documented(document, path, reply)


FILES = {"/docs": {"swagger-ui-bundle.js", "swagger-ui.css"}, "/redoc": {"redoc.standalone.js"}}


@pytest.mark.parametrize("page", FILES)
async def test_a_page_and_its_files_come_from_this_service(
    client: httpx.AsyncClient, page: str
) -> None:
    html, packaged = (await client.get(page)).text, metadata.files("fastapi-offline") or []
    addresses = re.findall(r"""(?:href|src|url|spec-url)\s*[=:]\s*["']([^"']+)""", html)
    assert {path.removeprefix("/docs/") for path in addresses if "/docs/" in path} == FILES[page]
    assert "/openapi.json" in addresses
    for path in addresses:
        assert path.startswith("/")
        assert not path.startswith("//")
        response = await client.get(path)
        assert response.status_code == 200
        assert len(response.content) > 100
        own = [file for file in packaged if f"/docs/{file.name}" == path]
        assert [Path(file.locate()).read_bytes() for file in own] in ([], [response.content])
    assert not re.findall(r"https?://(?!www\.w3\.org/)", html)


async def test_redoc_s_logo_is_not_fetched_from_its_maker(client: httpx.AsyncClient) -> None:
    script = (await client.get("/docs/redoc.standalone.js")).text
    assert re.search(r"https://[\w.]+/redoc/logo-mini.svg", script)
    policy = (await client.get("/redoc")).headers["content-security-policy"]
    assert policy == "img-src 'self' data:"


@pytest.mark.parametrize(
    "file",
    ["favicon.png", "__init__.py", "..%2F__init__.py", "../__init__.py", "%2Fetc%2Fhosts", ""],
)
async def test_no_other_file_is_served(client: httpx.AsyncClient, file: str) -> None:
    assert_problem(await client.get(f"/docs/{file}"), 404)


@pytest.fixture
async def served_document(client: Client) -> dict[str, Any]:
    return dict((await client.get("/openapi.json")).json())


async def test_every_route_lists_the_errors_of_a_head(served_document: dict[str, Any]) -> None:
    lacking = [
        f"{method} {path}: {status}"
        for path, operations in served_document["paths"].items()
        for method, operation in operations.items()
        for status in ("401", "421", "431")
        if status not in operation["responses"] and (status != "401" or "/health" not in path)
    ]
    assert lacking == []


async def test_no_route_lists_a_422_of_another_form(served_document: dict[str, Any]) -> None:
    """FastAPI adds one to each route with parameters."""
    assert "ValidationError" not in json.dumps(served_document)
    assert "422" not in served_document["paths"]["/info"]["get"]["responses"]
    assert "422" in served_document["paths"]["/encode"]["post"]["responses"]


async def test_every_reference_of_the_document_resolves(served_document: dict[str, Any]) -> None:
    references = re.findall(r'"\$ref": "#/([^"]*)"', json.dumps(served_document))
    assert "components/schemas/EmbedRequest" in references
    for reference in references:
        node = served_document
        for name in reference.split("/"):
            assert name in node, reference
            node = node[name]


async def test_every_route_but_the_probes_asks_for_a_key(artifact: Artifact) -> None:
    engine = FakeEngine(artifact.manifest.config)
    async with serving(artifact, engine, api_keys="s3cret") as client:
        for key in ("Bearer s3cret", "Basic OnMzY3JldA=="):
            reply = await client.get("/openapi.json", headers={"authorization": key})
            assert reply.status_code == 200
    document = reply.json()
    schemes = document["components"]["securitySchemes"]
    assert [(one["type"], one["scheme"]) for one in schemes.values()] == [
        ("http", "bearer"),
        ("http", "basic"),
    ]
    assert document["security"] == [{name: []} for name in schemes]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation.get("security") == ([] if path in PROBE_PATHS else None), path


async def test_a_service_without_keys_tells_of_none(artifact: Artifact) -> None:
    async with serving(artifact, FakeEngine(artifact.manifest.config)) as client:
        document = (await client.get("/openapi.json")).json()
    assert "security" not in document
    assert "securitySchemes" not in document["components"]


async def test_info(
    client: httpx.AsyncClient,
    artifact: Artifact,
    onnx_engine: OnnxEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(onnx_engine, "cost", BatchCost())  # another test may have measured it
    info = (await client.get("/info")).json()
    said = {
        "model_id": "small",
        "max_input_length": 512,
        "max_client_batch_size": 512,
        "max_characters": 64 * 512,
        "layers": 2,
        "heads": 2,
        "hidden_size": 128,
        "engine": "onnx",
        "provider": "CPUExecutionProvider",
        "attention_kernels": [],
        "cuda_graphs": False,
        "devices": None,
        "precision": "fp32",
        "precision_note": None,
        "weight_bits": None,
        "batch_cost_ms": None,
        "artifact_sha256": artifact.sha256,
        "model_sha": artifact.manifest.files["weights.safetensors"].sha256,
        "prompts": [],
        "default_prompt_name": None,
        "embedding_dimension": 128,
        "vector_ranges": True,
        "truncate_dim": None,
        "matryoshka_dims": [],
        "similarity_fn_name": "cosine",
    }
    assert {name: info[name] for name in said} == said
    assert info["verification"]["vectors"] == {"passed": True, "failed": None}
    assert info["verification"]["heads"] == {"passed": True, "failed": None}
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}


async def test_info_has_the_measured_cost_of_a_batch(artifact: Artifact) -> None:
    engine = OnnxEngine(artifact)
    engine.cost = BatchCost(0.001, 0.0001, 0.00002)
    async with serving(artifact, engine) as client:
        info = (await client.get("/info")).json()
    assert info["batch_cost_ms"] == {"fixed": 1.0, "token": 0.1, "padding": 0.02}


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (
            TaskConfig(
                kind="sequence_classification", outputs=2, labels=("no", "yes"), pooling="cls"
            ),
            {"classifier": {"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}}},
        ),
        (
            TaskConfig(kind="sequence_classification", outputs=1, labels=("x",), pooling="cls"),
            {"reranker": {"id2label": {"0": "x"}, "label2id": {"x": 0}}},
        ),
        (TaskConfig(kind="sparse", outputs=9, pooling="max"), {"embedding": {"pooling": "splade"}}),
        (
            TaskConfig(kind="token_classification", outputs=2, pooling="none"),
            {"embedding": {"pooling": "mean"}},
        ),
    ],
)
def test_the_kind_of_a_model_is_teis(
    artifact: Artifact, task: TaskConfig, expected: object
) -> None:
    assert model_type(artifact.manifest.model_copy(update={"task": task})) == expected


async def test_a_precision_that_the_processor_makes_slow_is_told_at_start_and_in_info(
    artifact: Artifact, onnx_engine: OnnxEngine, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.artifacts.opening.has_products", lambda _: False)
    note = "no fast fp32 products on this processor: fp32 is likely faster"
    async with serving(artifact, onnx_engine) as client:
        assert (await client.get("/info")).json()["precision_note"] == note
    assert [each["message"] for each in log.objects if each["level"] == "warning"] == [note]
