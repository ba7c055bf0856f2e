"""Notes of events, counted together as prometheus_client would count each."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.openmetrics.exposition import generate_latest

from model.artifact.manifest import Artifact
from service.models.state import state_of
from service.telemetry.registry import MOST_NOTES, SECONDS, Registry, observe
from service.telemetry.requests import HttpMetrics
from tests.service.harness import GatedEngine, exchange, listening


def histogram(registry: CollectorRegistry) -> Histogram:
    return Histogram("h", "Help.", ["route"], buckets=SECONDS, registry=registry)


@pytest.mark.parametrize("size", [1, 7, 300])
def test_values_have_the_text_of_values_that_are_observed_one_by_one(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Among the values are a bound, values above all bounds, and some without exemplars."""
    monkeypatch.setattr(time, "time", lambda: 1.5)
    chance = random.Random(0)
    values = [0.001, 0.0, 61.0, *(chance.randrange(4096) / 1024 for _ in range(297))]
    labels = [{"id": str(n)} if n % 3 else None for n, _ in enumerate(values)]
    expected, found = CollectorRegistry(), CollectorRegistry()
    one_by_one, together = (histogram(one).labels("/") for one in (expected, found))
    for value, label in zip(values, labels, strict=True):
        one_by_one.observe(value, label)
    exemplars = [
        (label, value, 1.5) if label else None for value, label in zip(values, labels, strict=True)
    ]
    for first in range(0, 300, size):
        part = slice(first, first + size)
        observe(together, values[part], exemplars[part])
    text: Any = partial(generate_latest, version="1.0.0")
    assert text(found) == text(expected)
    assert text(found).count(b"# {") > 10


def answer(metrics: HttpMetrics, times: int = 1) -> None:
    found = exchange()
    found.status, found.received_bytes, found.sent_bytes = 200, 3, 4
    for _ in range(times):
        found.received = time.monotonic() - 0.5
        metrics.ended(found)


def counted(registry: Registry) -> float:
    """Return the counted requests without counting the noted ones."""
    return sum(
        sample.value
        for family in registry.requests.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    )


def test_notes_are_counted_when_the_metrics_are_read() -> None:
    registry = Registry()
    answer(HttpMetrics(registry), 7)
    assert counted(registry) == 0
    labels = {"route": "unmatched"}
    for _ in range(2):
        assert registry.get_sample_value("headscope_request_bytes_total", labels) == 21
        assert registry.get_sample_value("headscope_reply_bytes_total", labels) == 28
        total = registry.get_sample_value("headscope_request_seconds_sum", labels)
        assert total == pytest.approx(3.5, rel=1e-3)
    assert counted(registry) == 7


def test_unread_notes_are_bounded() -> None:
    metrics = HttpMetrics(registry := Registry())
    answer(metrics, MOST_NOTES - 1)
    assert counted(registry) == 0
    answer(metrics)
    assert counted(registry) == MOST_NOTES


def test_a_note_of_an_event_during_the_count_is_kept() -> None:
    registry, seen = Registry(), list[str]()

    def count(taken: list[str]) -> None:
        if not seen:
            notes.append("during")
        seen.extend(taken)

    notes = registry.notes(count)
    notes.append("before")
    registry.count()
    assert seen == ["before"]
    registry.count()
    assert seen == ["before", "during"]


def test_a_reader_waits_for_notes_that_another_thread_counts() -> None:
    registry, begun, released = Registry(), threading.Event(), threading.Event()

    def count(_: list[int]) -> None:
        begun.set()
        assert released.wait(60)

    registry.notes(count).append(1)
    with ThreadPoolExecutor() as threads:
        counting = threads.submit(registry.count)
        assert begun.wait(60)
        reading = threads.submit(lambda: [*registry.collect()])
        done, _ = wait([counting, reading], 0.1)
        released.set()
    assert not done


def test_a_server_counts_soon_and_at_its_end(artifact: Artifact) -> None:
    """The second request is answered while the server stops."""
    engine = GatedEngine()
    with ThreadPoolExecutor() as clients:
        with listening(artifact, engine) as (app, port):
            registry, url = state_of(app).metrics.registry, f"http://127.0.0.1:{port}"
            httpx.get(f"{url}/health/live")
            end = time.monotonic() + 10
            while not counted(registry) and time.monotonic() < end:
                time.sleep(0.01)
            assert counted(registry) == 1
            reply = clients.submit(httpx.post, f"{url}/attention", json={"inputs": "a"})
            while not engine.batches and time.monotonic() < end:
                time.sleep(0.01)
            threading.Timer(0.5, engine.let_through).start()
        assert reply.result().status_code == 200
    assert counted(registry) == 2
