"""Health, information, metrics and the documents."""

from __future__ import annotations

import asyncio
import random
import string
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from model.artifact.manifest import Artifact
from service.engines.contract import Output, Task
from service.engines.fake import FakeEngine
from service.engines.onnx import OnnxEngine
from tests.service.harness import (
    CONFIG,
    AnsweringEngine,
    GatedEngine,
    assert_problem,
    serving,
    until,
)

pytestmark = pytest.mark.anyio
READY = ["/health/ready", "/health"]


Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""Name and sorted labels → value."""


async def samples(client: httpx.AsyncClient) -> Samples:
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


@pytest.mark.parametrize("route", READY)
async def test_ready_once_the_engine_has_answered(artifact: Artifact, route: str) -> None:
    engine = GatedEngine()
    async with serving(artifact, engine) as client:
        engine.let_through()
        for _ in range(3):
            response = await client.get(route)
            assert (response.status_code, response.json()) == (200, {"status": "ready"})
        assert engine.batches == [[1]]  # a fresh success needs no new probe


@pytest.mark.parametrize("route", READY)
async def test_not_ready_while_the_engine_hangs(
    artifact: Artifact, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.health.readiness.PROBE_SECONDS", 0.05)
    engine = GatedEngine()
    async with serving(artifact, engine) as client:
        for _ in range(3):
            response = await client.get(route)
            assert_problem(response, 503, says="did not answer a probe", error_type="Unhealthy")
            assert (await client.get("/health/live")).json() == {"status": "live"}
        queued = (("lane", "encode"),)
        assert (await samples(client))["headscope_queue_tokens", queued] == 0
        engine.let_through()
        monkeypatch.undo()  # however long a busy machine takes
        assert (await client.get(route)).status_code == 200


async def test_not_ready_while_the_queue_of_a_hung_engine_is_full(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.health.readiness.PROBE_SECONDS", 0.05)
    engine = GatedEngine()
    async with serving(artifact, engine, max_queue_tokens=6) as client:
        waiting = []
        for inputs in ("a", "a b c d"):
            waiting.append(asyncio.create_task(client.post("/encode", json={"inputs": inputs})))
            await until(lambda: engine.batches)
        while (await samples(client))["headscope_queue_tokens", (("lane", "encode"),)] < 6:
            await asyncio.sleep(0.001)
        overloaded = await client.post("/encode", json={"inputs": "a"})
        assert_problem(overloaded, 429, says="holds 6 of 6 tokens", error_type="Overloaded")
        assert overloaded.json()["retryable"] is True
        assert_problem(await client.get("/health/ready"), 503, error_type="Unhealthy")
        engine.let_through()
        assert [(await one).status_code for one in waiting] == [200, 200]


async def test_not_ready_while_the_engine_is_dead(artifact: Artifact) -> None:
    class Dead(FakeEngine):
        alive = False

    async with serving(artifact, Dead(CONFIG)) as client:
        for path in READY:
            assert_problem(await client.get(path), 503, error_type="Unhealthy")
        response = await client.post("/encode", json={"inputs": "a"})
        assert_problem(response, 503, says="fake engine is down", error_type="Unhealthy")
        assert (await client.get("/health/live")).status_code == 200


async def test_not_ready_while_the_engine_fails(artifact: Artifact) -> None:
    def fail(_: Sequence[Task]) -> list[Output]:
        raise ValueError("c4n4ry")

    engine = AnsweringEngine(fail)
    async with serving(artifact, engine) as client:
        for path in READY:
            response = await client.get(path)
            assert_problem(response, 503, says="raised ValueError", error_type="Unhealthy")
            assert "c4n4ry" not in response.text
        response = await client.post("/encode", json={"inputs": "a"})
        assert_problem(response, 500, says="raised ValueError", error_type="Backend")
        engine.answer = lambda _: None
        assert (await client.get("/health/ready")).status_code == 200


async def test_info(client: httpx.AsyncClient, artifact: Artifact) -> None:
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
        "precision": "fp32",
        "weight_bits": None,
        "artifact_sha256": artifact.sha256,
        "model_sha": artifact.manifest.files["weights.safetensors"].sha256,
        "prompts": [],
    }
    assert {name: info[name] for name in said} == said
    assert info["verification"]["passed"] is True
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}


async def test_metrics_count_what_happened(artifact: Artifact, onnx_engine: OnnxEngine) -> None:
    async with serving(artifact, onnx_engine) as client:
        for _ in range(3):
            await client.post("/encode", json={"inputs": ["a b", "a"]})
        await client.post("/attention", json={"inputs": "a b c"})
        await client.post("/attention", json={"inputs": 1})
        found = await samples(client)

    def value(name: str, **labels: str) -> float:
        return found[f"headscope_{name}", tuple(sorted(labels.items()))]

    assert value("requests_total", route="/encode", status="200") == 3
    assert value("requests_total", route="/attention", status="200") == 1
    assert value("requests_total", route="/attention", status="422") == 1
    assert value("request_seconds_count", route="/encode") == 3
    assert value("tokens_total", lane="encode") == 3 * 7
    assert value("tokens_total", lane="attention") == 5
    assert value("batch_texts_sum", lane="encode") == 6
    assert value("batch_tokens_sum", lane="encode") >= 3 * 7
    assert value("queue_seconds_count", lane="encode") == 6
    assert value("failed_batches_total", lane="encode") == 0
    assert value("client_disconnects_total") == 0
    engine = {"engine": "onnx", "provider": "CPUExecutionProvider"}
    assert value("engine_info", **engine, precision="fp32", model="small") == 1


async def test_failed_batches_are_counted(artifact: Artifact) -> None:
    async with serving(artifact, AnsweringEngine(lambda _: [])) as client:
        for _ in range(2):
            assert_problem(
                await client.post("/encode", json={"inputs": "a"}), 500, error_type="Backend"
            )
        found = await samples(client)
    assert found["headscope_failed_batches_total", (("lane", "encode"),)] == 2


async def test_labels_are_templates_however_many_paths(client: httpx.AsyncClient) -> None:
    chance = random.Random(0)
    letters = string.ascii_letters + string.digits + "/._-%<>\"'{}"
    methods = ["GET", "POST", "PUT", "DELETE", "OPTIONS", "BREW"]

    async def visit() -> None:
        path = "/" + "".join(chance.choices(letters, k=12))
        await client.request(chance.choice(methods), path)
        await client.request("PUT", chance.choice(["/encode", "/info", "/metrics"]))

    for method in methods:  # some of the paths are this one in disguise
        await client.request(method, "/")
    for _ in range(50):
        await visit()
        await samples(client)
    before = (await samples(client)).keys()
    for _ in range(500):
        await visit()
    assert (await samples(client)).keys() == before
    routes = {dict(labels).get("route") for _, labels in before} - {None}
    known = {
        "/",
        "/dashboard/{file}",
        "unmatched",
        "/encode",
        "/info",
        "/metrics",
        "/attention",
        "/health",
        "/health/live",
    }
    assert routes <= known | {"/health/ready", "/verify", "/docs", "/openapi.json"}


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
        problems = {"400", "401", "408", "413", "415", "422", "429", "500", "501", "503", "504"}
        assert set(operation["responses"]) == problems | {"200"}
