"""Metrics: counts and labels of one process, and of several that share them."""

from __future__ import annotations

import os
import random
import string
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from model.artifact.manifest import Artifact
from service.engines.onnx import OnnxEngine
from service.telemetry.metrics import Metrics
from tests.service.harness import (
    AnsweringEngine,
    Client,
    assert_problem,
    serving,
)
from tests.service.scraped import samples

pytestmark = pytest.mark.anyio


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


SHARING = """
import sys
from pathlib import Path
from service.telemetry.metrics import Metrics
from service.telemetry.shared import share

folder, index, what = sys.argv[1:]
share(int(index))
metrics = Metrics(Path(folder))
metrics.tokens.labels("encode").inc(int(what))
metrics.queue_seconds.labels("encode").observe(0.003)
metrics.queue_tokens.labels("encode").set(int(what))
metrics.engine.labels("fake", "none", "fp32", "small").set(1)
print(metrics.render().decode())
"""


def shared_values(folder: Path, index: int, amount: int) -> dict[str, float]:
    """What a process with this index renders once it has counted."""
    done = subprocess.run(
        [sys.executable, "-c", SHARING, str(folder), str(index), str(amount)],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(done.stdout)
        for sample in family.samples
        if sample.labels.get("lane", "encode") == "encode"
    }


@pytest.mark.slow
def test_counts_outlive_their_process(tmp_path: Path) -> None:
    shared_values(tmp_path, 0, 100)
    found = shared_values(tmp_path, 1, 10)
    assert found["headscope_tokens_total"] == 110
    assert found["headscope_queue_seconds_count"] == 2
    assert found["headscope_queue_seconds_sum"] == pytest.approx(0.006)
    assert found["headscope_queue_tokens"] == 110
    assert found["headscope_workers"] == 2
    assert found["headscope_engine_info"] == 1
    files = sorted(tmp_path.iterdir())
    again = shared_values(tmp_path, 0, 1)
    assert again["headscope_tokens_total"] == 111
    assert again["headscope_queue_tokens"] == 11
    assert again["headscope_workers"] == 2
    assert sorted(tmp_path.iterdir()) == files


async def test_paths_and_methods_that_nobody_knows_add_no_series(client: Client) -> None:
    async def series() -> int:
        lines = (await client.get("/metrics")).text.splitlines()
        return len([line for line in lines if line.startswith("headscope_")])

    async def ask(number: int) -> httpx.Response:
        return await client.request(f"M{number}", f"/{number}/encode")

    await ask(0)
    await series()
    before = await series()
    for number in range(200):
        assert (await ask(number)).status_code == 404
    assert await series() == before


def test_degraded_while_any_model_is() -> None:
    metrics = Metrics()

    def degraded() -> float | None:
        return metrics.registry.get_sample_value("headscope_degraded")

    found = [degraded()]
    for model, stood_in in [("a", True), ("b", True), ("a", False), ("a", False), ("b", False)]:
        metrics.stood_in_for(model, stood_in=stood_in)
        found.append(degraded())
    assert found == [0, 1, 1, 1, 1, 0]
