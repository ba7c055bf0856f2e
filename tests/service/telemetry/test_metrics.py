"""Metrics of the service and all its processes, and the routes of probes and scrapes."""

from __future__ import annotations

import platform
import random
import string
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from service.models.state import state_of
from service.system import machine
from service.telemetry.requests import METRICS_PATH, PROBE_PATHS
from testing.process import run_python
from tests.service.harness import CONFIG, GatedEngine, listening, serving
from tests.service.scraped import samples

pytestmark = pytest.mark.anyio


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
import numpy as np
from service.engines.contract import TextTask
from service.telemetry.metrics import Metrics
from service.telemetry.shared import share

folder, index, what = sys.argv[1:]
share(int(index))
metrics = Metrics(Path(folder))
model = metrics.of_model("small")
task = TextTask(np.zeros(int(what), np.int64), np.zeros(int(what), np.int64))
model.batch_finished("encode", [task], 0.5)
model.waited("encode", 0.003)
metrics.registry.sample([
    ("queue_tokens", ("small", "encode"), int(what)),
    ("queue_tokens_limit", ("small", "encode"), 1000),
    ("engine_info", ("fake", "CPU", "", "fp32", "small"), 1),
])
metrics.registry.ready.set(int(what) != 10)
print(metrics.render().decode())
"""


def shared_values(folder: Path, index: int, amount: int) -> dict[str, float]:
    """Return the metrics that a process with an index renders after counting."""
    shared = {"PROMETHEUS_MULTIPROC_DIR": str(folder)}
    done = run_python("-c", SHARING, folder, str(index), str(amount), **shared)
    assert done.returncode == 0, done.stderr
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
    assert found["headscope_build_info"] == 1
    assert found["headscope_queue_tokens_limit"] == 2000
    assert found["headscope_ready"] == 0, "one of the workers is not"
    files = sorted(tmp_path.iterdir())
    again = shared_values(tmp_path, 0, 1)
    assert again["headscope_tokens_total"] == 111
    assert again["headscope_queue_tokens"] == 11
    assert again["headscope_workers"] == 2
    assert sorted(tmp_path.iterdir()) == files


def test_each_answers_get_and_head(artifact: Artifact) -> None:
    """Over a real connection: a reply to HEAD has the same head and no body."""
    with (
        listening(artifact, FakeEngine(artifact.manifest.config)) as (_, port),
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        for path in sorted(PROBE_PATHS):
            got, head = client.get(path), client.head(path)
            assert (got.status_code, head.status_code) == (200, 200)
            assert head.content == b""
            assert head.headers.get("content-type") == got.headers.get("content-type")
        assert client.get(METRICS_PATH).status_code == 200
        assert client.head(METRICS_PATH).status_code == 405


async def test_build_and_limits(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_memory", lambda: 12345)
    chosen: dict[str, Any] = {
        "max_body_bytes_in_flight": 1001,
        "max_bytes_in_flight": 100_002,
        "request_timeout_seconds": 3.5,
        "queue_timeout_seconds": 2.5,
        "queue_target_seconds": 0.25,
    }
    async with serving(artifact, FakeEngine(CONFIG), **chosen) as client:
        found = await samples(client)
    build = (("python", platform.python_version()), ("version", version("headscope-server")))
    assert found["headscope_build_info", build] == 1
    names = ("body_bytes_in_flight_limit", "reply_bytes_in_flight_limit", "request_seconds_limit",
             "queue_seconds_limit", "queue_seconds_target")  # fmt: skip
    assert [found[f"headscope_{name}", ()] for name in names] == list(chosen.values())
    assert found["headscope_memory_available_bytes", ()] == 12345
    assert found["headscope_workers", ()] == 1
    assert found["headscope_requests_in_flight", ()] == 1, "the scrape itself"


async def test_ready_as_the_last_probe_found(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scrape starts no probe: it computes nothing."""
    monkeypatch.setattr("service.health.engine.PROBE_SECONDS", 0.05)
    engine = GatedEngine()
    async with serving(artifact, engine) as client:

        async def ready() -> float:
            return (await samples(client))["headscope_ready", ()]

        assert await ready() == 1
        assert engine.batches == []
        assert (await client.get("/health/ready")).status_code == 503
        assert await ready() == 0
        engine.let_through()
        monkeypatch.undo()  # however long a busy machine takes
        assert (await client.get("/health/ready")).status_code == 200
        assert await ready() == 1
        state_of(client.app).readiness.draining = True
        assert await ready() == 0
