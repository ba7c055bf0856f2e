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
from service.scheduler.admission import BatchLimits
from service.telemetry.metrics import Metrics
from service.telemetry.shared import share

folder, index, what = sys.argv[1:]
share(int(index))
metrics = Metrics(Path(folder))
model = metrics.of_model("small")
task = TextTask(np.zeros(int(what), np.int64), np.zeros(int(what), np.int64))
model.batch_finished("encode", [task], 0.5)
model.waited("encode", 0.003)
model.queued("encode", int(what), 1)
model.limited(1, BatchLimits(64, 1000), 9)
metrics.of_models.engines.set({("fake", "CPU", "fp32", "small"): 1})
metrics.service.ready.set(int(what) != 10)
print(metrics.render().decode())
"""


def shared_values(folder: Path, index: int, amount: int) -> dict[str, float]:
    """Return the metrics that a process with an index renders after counting."""
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
    assert found["headscope_build_info"] == 1
    assert found["headscope_queue_tokens_limit"] == 2000
    assert found["headscope_ready"] == 0, "one of the workers is not"
    files = sorted(tmp_path.iterdir())
    again = shared_values(tmp_path, 0, 1)
    assert again["headscope_tokens_total"] == 111
    assert again["headscope_queue_tokens"] == 11
    assert again["headscope_workers"] == 2
    assert sorted(tmp_path.iterdir()) == files
