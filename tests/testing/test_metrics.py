"""Samples by name and labels, and their sums."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from testing.metrics import samples, total


def test_samples_and_totals() -> None:
    registry = CollectorRegistry()
    asked = Counter("asked", "Requests.", ["status", "route"], registry=registry)
    asked.labels("200", "/a").inc(3)
    asked.labels("429", "/a").inc(4)
    Gauge("asked_totally", "Something else.", registry=registry).set(100)
    found = samples(generate_latest(registry).decode())
    assert found["asked_total [('route', '/a'), ('status', '200')]"] == 3
    assert found["asked_totally []"] == 100
    assert total(found, "asked_total [") == 7
    assert total(found, "asked_total [('route', '/a'), ('status', '4") == 4
    assert total(found, "asked_total") == 107
    assert total(found, "nothing") == 0
