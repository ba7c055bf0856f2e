"""Fixtures of the tests of deployments: metrics of a service that has answered requests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from testing.blocking import ask
from testing.haproxy import balancing, haproxy
from testing.process import free_port
from tests.service.harness import CONFIG, serving

SELECTOR = re.compile(r"\b(headscope_\w+|process_\w+|haproxy_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
OF_PROMETHEUS = {"job", "instance"}


@pytest.fixture(scope="session")
def page(exported: Callable[..., Artifact], small_checkpoint: Path) -> str:
    """Return `/metrics` of a service that has answered and refused requests."""

    async def asked() -> str:
        async with serving(exported(small_checkpoint, "small"), FakeEngine(CONFIG)) as client:
            for route in ("/encode", "/attention"):
                await client.post(route, json={"inputs": ["a", "b"]})
            await client.post("/encode", json={"inputs": 1})
            await client.post("/encode", json={"inputs": 1}, headers={"x-request-timeout-ms": "0"})
            return (await client.get("/metrics")).text

    return asyncio.run(asked())


@pytest.fixture(scope="session")
def balancer_page() -> str:
    """Return `/metrics` of a balancer without replicas; empty if HAProxy is not installed."""
    if haproxy() is None:
        return ""
    with balancing(free_port()) as balancer:
        return ask(balancer.metrics_port, "/metrics").body.decode()


@pytest.fixture(scope="session")
def exposed(page: str, balancer_page: str) -> Mapping[str, set[str]]:
    """Return the labels by metric name, of the service and its balancer."""
    return labels_of(page) | labels_of(balancer_page)


def labels_of(page: str) -> dict[str, set[str]]:
    """Return the labels by metric name on one page."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found.setdefault(name, set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.fixture(scope="session")
def strangers(exposed: Mapping[str, set[str]]) -> Callable[[str], set[str]]:
    """Return a function that lists a query's metrics and labels which neither exposes."""

    def unknown(query: str) -> set[str]:
        found = set()
        for name, matchers in SELECTOR.findall(query):
            if name not in exposed:
                found.add(name)
            elif exposed[name]:
                labels = set(MATCHER.findall(matchers)) - OF_PROMETHEUS
                found |= {f"{name}{{{label}}}" for label in labels - exposed[name]}
        return found

    return unknown
