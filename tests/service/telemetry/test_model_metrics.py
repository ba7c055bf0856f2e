"""Metrics of models, of those alone that are loaded."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge

from model.artifact.manifest import Artifact
from service.engines.onnx import OnnxEngine
from service.telemetry.metrics import VERSIONS, LoadedModels, ModelMetrics
from service.telemetry.registry import Registry
from tests.service.harness import AnsweringEngine, assert_problem, serving
from tests.service.scraped import samples

pytestmark = pytest.mark.anyio


async def test_what_happened_is_counted(artifact: Artifact, onnx_engine: OnnxEngine) -> None:
    """Tokens count [CLS] a b [SEP], [CLS] a [SEP] and so on."""
    async with serving(artifact, onnx_engine) as client:
        for _ in range(3):
            await client.post("/encode", json={"inputs": ["a b", "a"]})
        await client.post("/encode", json={"inputs": "a b c", "truncate": True})
        await client.post("/attention", json={"inputs": ["a b c", "a"]})
        found = await samples(client)

    def value(name: str, **labels: str) -> float:
        return found[f"headscope_{name}", tuple(sorted({"model": "small", **labels}.items()))]

    assert value("tokens_total", lane="encode") == 3 * 7 + 5
    assert value("tokens_total", lane="attention") == 5 + 3
    assert value("input_tokens_count") == 9
    assert value("input_tokens_sum") == 3 * 7 + 5 + 8
    assert value("input_tokens_bucket", le="4.0") == 7
    assert value("truncated_inputs_total") == 0
    assert value("batch_texts_sum", lane="encode") == 7
    assert value("batch_tokens_sum", lane="encode") == 3 * 7 + 5
    assert value("queue_seconds_count", lane="encode") == 4, "one a request"
    assert value("queue_seconds_count", lane="attention") == 1, "one a request"
    assert value("failed_batches_total", lane="encode") == 0
    engine = {"engine": "onnx", "provider": "CPUExecutionProvider", "precision": "fp32"}
    engine["attention_kernels"] = ""
    assert value("engine_info", **engine) == 1
    assert value("engine_calls_limit") == onnx_engine.concurrency
    assert value("batch_tokens_limit") == onnx_engine.batch_tokens


async def test_cut_inputs_and_failed_batches(artifact: Artifact) -> None:
    async with serving(artifact, AnsweringEngine(lambda _: []), max_length=4) as client:
        for _ in range(2):
            asked = {"inputs": ["a b c d e", "a", "\U0001f9ff"], "truncate": True}
            assert_problem(await client.post("/encode", json=asked), 500, error_type="Backend")
        found = await samples(client)
    encode = (("lane", "encode"), ("model", "small"))
    assert found["headscope_truncated_inputs_total", encode[1:]] == 2
    assert found["headscope_unknown_token_inputs_total", encode[1:]] == 2
    assert found["headscope_prompt_missing_inputs_total", encode[1:]] == 0
    assert found["headscope_input_tokens_limit", encode[1:]] == 4
    assert found["headscope_failed_batches_total", encode] >= 2


def test_each_model_has_its_own_series_from_the_start() -> None:
    """Prometheus sees an increase only in a series that existed before."""
    registry = Registry()
    _, other = ModelMetrics(registry, "one"), ModelMetrics(registry, "other")
    other.count("engine_restarts")
    other.count("verified_batches", "failed")

    def values(name: str, **labels: str) -> list[float | None]:
        return [
            registry.get_sample_value(f"headscope_{name}", {"model": model, **labels})
            for model in ("one", "other")
        ]

    assert values("engine_restarts_total") == [0, 1]
    for reason in ("tokens", "texts", "wait", "deadline"):
        assert values("queue_refused_total", lane="attention", reason=reason) == [0, 0], reason
    assert values("verified_batches_total", result="failed") == [0, 1]
    assert values("verified_batches_total", result="passed") == [0, 0]


def test_the_series_of_several_versions_are_one() -> None:
    """A series that has gone has no effect on the sum, maximum or minimum of all workers."""
    registry = Registry()

    def values(*samples: tuple[str, float]) -> list[float | None]:
        labels = {"device_up": ("a", "0"), "queue_tokens": ("a", "encode")}
        registry.sample((name, labels.get(name, ("a",)), value) for name, value in samples)
        return [
            registry.get_sample_value("headscope_queue_tokens", {"model": "a", "lane": "encode"}),
            registry.get_sample_value("headscope_device_up", {"model": "a", "device": "0"}),
            registry.get_sample_value("headscope_degraded", {"model": "a"}),
        ]

    assert values() == [None, None, None]
    one = (("queue_tokens", 3), ("device_up", True), ("degraded", False))
    other = (("queue_tokens", 4), ("device_up", False), ("degraded", True))
    assert values(*one) == [3, 1, 0]
    assert values(*one, *other) == values(*other, *one) == [7, 0, 1]
    assert values(*other[:1]) == [4, 1, 0]
    assert values() == values() == [0, 1, 0]


def test_only_models_that_have_gone_are_left_out() -> None:
    registry = CollectorRegistry()
    versions = Gauge(VERSIONS, "Versions.", ["model", "state"], registry=registry)
    tokens = Counter("t", "Tokens.", ["model"], registry=registry)
    for model in ("a", "b", "never counted"):
        tokens.labels(model).inc(0)

    def reported() -> list[tuple[str, ...]]:
        families = LoadedModels(registry).collect()
        samples = [one for family in families for one in family.samples]
        return [tuple(one.labels.values()) for one in samples if not one.name.endswith("_created")]

    versions.labels("a", "serving").set(1)
    versions.labels("b", "loading").set(1)
    every = [("a",), ("b",), ("never counted",)]
    assert reported() == [("a", "serving"), ("b", "loading"), *every]
    versions.labels("a", "draining").set(2)
    for gone in (("a", "serving"), ("b", "loading")):
        versions.labels(*gone).set(0)
    assert reported() == [("a", "draining"), ("a",), ("never counted",)]
