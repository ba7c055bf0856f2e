"""Metrics of requests and replies, and the traces that they lead to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from model.artifact.manifest import Artifact
from service.engines.onnx import OnnxEngine
from service.errors import EngineFailed, EngineOutOfMemory, EngineTimeout, ServiceError
from service.models.state import state_of
from service.telemetry.registry import Registry
from service.telemetry.requests import HttpMetrics, trace_id
from tests.service.harness import AnsweringEngine, exchange, hold, serving
from tests.service.scraped import Samples, samples

pytestmark = pytest.mark.anyio
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
VALID = f"00-{TRACE}-00f067aa0ba902b7-01".encode()


async def test_every_refusal_has_its_route_and_reason(
    artifact: Artifact, onnx_engine: OnnxEngine
) -> None:
    key = {"authorization": "Bearer k"}
    chosen: dict[str, Any] = {"api_keys": "k", "max_length": 8, "max_body_bytes": 400}
    async with serving(artifact, onnx_engine, **chosen) as client:
        state = state_of(client.app)

        async def ask(path: str, json: Any = None, **headers: str) -> None:
            await client.post(path, json=json, headers=key | headers)

        await client.post("/encode", json={"inputs": "a"})
        await ask("/encode", {"inputs": "a " * 20})
        await ask("/encode", {"inputs": "a " * 400})
        await ask("/embed", {"inputs": 1})
        await ask("/encode", {"inputs": "a"}, **{"x-request-timeout-ms": "0"})
        await ask("/nowhere")
        await ask("/info")
        await ask("/v2/models/nobody/infer", {})
        with hold(state.replies, 2 * state.replies.limit):
            await ask("/encode", {"inputs": "a"})
        state.bodies.take(2 * state.bodies.limit)
        await ask("/attention", {"inputs": "a"})
        state.bodies.give_back(2 * state.bodies.limit)
        found = {
            labels: value
            for (name, labels), value in (await samples_with(client, key)).items()
            if name == "headscope_refused_total"
        }
    reasons = {
        ("/encode", "unauthorized"),
        ("/encode", "input_too_long"),
        ("/encode", "body_too_large"),
        ("/embed", "unprocessable"),
        ("/encode", "queue_deadline"),
        ("unmatched", "not_found"),
        ("/info", "method_not_allowed"),
        ("/v2/models/{model:name}/infer", "unprocessable"),
        ("/encode", "bytes_of_replies"),
        ("/attention", "bytes_of_bodies"),
    }
    assert found == {(("reason", reason), ("route", route)): 1 for route, reason in reasons}


async def samples_with(client: Any, headers: dict[str, str]) -> Samples:
    client.headers.update(headers)
    return await samples(client)


def test_a_failure_is_no_refusal() -> None:
    registry = Registry()
    metrics = HttpMetrics(registry)
    for error in (EngineFailed, EngineOutOfMemory, EngineTimeout, ServiceError):
        metrics.refused({"path": "/"}, error(""))
    (refused,) = registry.refused.collect()
    assert refused.samples == []


async def test_replies_are_held_to_their_prediction(
    artifact: Artifact, onnx_engine: OnnxEngine
) -> None:
    body = {"inputs": ["a b", "a"]}
    async with serving(artifact, onnx_engine) as client:
        replies = [await client.post(route, json=body) for route in ("/encode", "/attention")]
        await client.post("/encode", json={"inputs": 1})
        found = await samples(client)
    for reply, route, refused in zip(replies, ("/encode", "/attention"), (1, 0), strict=True):
        label = (("route", route),)
        assert found["headscope_reply_prediction_ratio_count", label] == 1
        assert 0 < found["headscope_reply_prediction_ratio_sum", label] <= 1.1, route
        sent = found["headscope_reply_bytes_total", label]
        assert sent >= len(reply.content)
        assert (sent > len(reply.content)) == bool(refused)
        assert found["headscope_request_bytes_total", label] >= len(reply.request.content)


FEW_NUMBERS: list[tuple[str, dict[str, Any]]] = [
    ("/encode", {"inputs": ["a b c " * 6] * 50, "outputs": ["pooled"], "dimensions": 1}),
    ("/encode", {"inputs": "a", "outputs": ["pooled"], "dimensions": 1}),
    ("/attention", {"inputs": ["a b c " * 6] * 50, "layers": [0], "heads": [0], "top_k": 1}),
    ("/attention", {"inputs": "a", "layers": [0], "heads": [0]}),
]


@pytest.mark.parametrize("accept", ["application/json", "application/vnd.safetensors"])
@pytest.mark.parametrize(("route", "body"), FEW_NUMBERS)
async def test_what_a_reply_says_beside_its_numbers_is_predicted_too(
    artifact: Artifact, route: str, body: dict[str, Any], accept: str
) -> None:
    engine = AnsweringEngine(lambda _: None)
    async with serving(artifact, engine) as client:
        reply = await client.post(route, json=body, headers={"accept": accept})
        assert reply.status_code == 200, reply.text
        found = await samples(client)
    assert 0 < found["headscope_reply_prediction_ratio_sum", (("route", route),)] <= 1.1


def answered(
    metrics: HttpMetrics, seconds: float, request_id: str = "id", headers: Any = ()
) -> None:
    """Count a request without content, answered with status 200."""
    found = exchange(request_id, headers=headers)
    found.status, found.received = 200, found.received - seconds
    metrics.ended(found)


@pytest.mark.parametrize(
    ("headers", "request_id", "exemplar"),
    [
        ([(b"traceparent", VALID)], "r", {"trace_id": TRACE}),
        ([], "mine", {"request_id": "mine"}),
        ([], "x" * 65, None),
    ],
)
def test_exemplars_lead_to_a_trace_or_a_log_line(
    headers: Any, request_id: str, exemplar: dict[str, str] | None
) -> None:
    registry = Registry()
    answered(HttpMetrics(registry), 0.3, request_id, headers)
    (found,) = [
        sample.exemplar
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "headscope_request_seconds_bucket" and sample.labels["le"] == "0.35"
    ]
    assert (found.labels if found else None) == exemplar


async def test_openmetrics_for_who_asks_for_it(client: Any) -> None:
    await client.get("/health/live")
    asked = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    reply = await client.get("/metrics", headers={"accept": asked})
    assert reply.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in text_string_to_metric_families(reply.text)}
    exemplars = [
        sample.exemplar.labels.keys()
        for sample in families["headscope_request_seconds"].samples
        if sample.exemplar
    ]
    assert exemplars == [{"request_id"}]
    assert "exemplar" not in (await client.get("/metrics")).text


@pytest.mark.parametrize("slowest", [0.03, 0.4, 14.3, 29.0])
def test_a_quantile_is_near_the_truth(slowest: float) -> None:
    """Linear within a bucket, as Prometheus' histogram_quantile: with buckets of 10 s and 30 s the
    99th percentile was 29.5 s where the slowest took 14.3 s."""
    registry = Registry()
    metrics = HttpMetrics(registry)
    taken = np.random.default_rng(0).uniform(0.9 * slowest, slowest, 500)
    for seconds in taken:
        answered(metrics, seconds)
    buckets = [
        (float(sample.labels["le"]), sample.value)
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "headscope_request_seconds_bucket"
    ]
    bounds, counts = map(np.array, zip(*buckets, strict=True))
    estimated = np.interp(0.99 * 500, counts[:-1], bounds[:-1])
    assert 1 / 1.5 < estimated / np.quantile(taken, 0.99) < 1.5


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([VALID], TRACE),
        ([b"cc" + VALID[2:] + b"-what-the-future-will-be-like"], TRACE),
        ([], ""),
        ([VALID, VALID], ""),
        ([b"ff" + VALID[2:]], ""),
        ([VALID.upper()], ""),
        ([VALID.replace(TRACE.encode(), b"0" * 32)], ""),
        ([VALID.replace(b"00f067aa0ba902b7", b"0" * 16)], ""),
        ([VALID[:-3]], ""),
    ],
)
def test_only_a_valid_header_has_one(values: list[bytes], found: str) -> None:
    headers = [(b"host", b"a"), *((b"traceparent", value) for value in values)]
    assert trace_id(exchange(headers=headers)) == found
