"""Metrics of models, of those alone that are loaded."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge

from model.artifact.manifest import Artifact
from service.engines.contract import DeviceState
from service.engines.onnx import OnnxEngine
from service.scheduler.lanes import BatchLimits
from service.telemetry.metrics import VERSIONS, LoadedModels, ModelMetrics, PresentSeries
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
    one, other = ModelMetrics(registry, "one"), ModelMetrics(registry, "other")
    one.limited(1, BatchLimits(64, 1000, 77), 9)
    one.stood_in(stood_in=True)
    one.stood_in(stood_in=False)
    other.stood_in(stood_in=True)
    other.restarted()
    other.verified("failed")
    for worst in (0.25, 0.125):
        other.live_difference("pooled", worst)

    def values(name: str, **labels: str) -> list[float | None]:
        return [
            registry.get_sample_value(f"headscope_{name}", {"model": model, **labels})
            for model in ("one", "other")
        ]

    assert values("degraded") == [0, 1]
    assert values("engine_restarts_total") == [0, 1]
    for reason in ("tokens", "texts", "wait", "deadline"):
        assert values("queue_refused_total", lane="attention", reason=reason) == [0, 0], reason
    assert values("verified_batches_total", result="failed") == [0, 1]
    assert values("verified_batches_total", result="passed") == [0, 0]
    assert values("live_max_abs_diff", kind="pooled") == [None, 0.25]
    assert values("queue_tokens_limit", lane="encode") == [1000, None]
    assert values("queue_texts_limit", lane="attention") == [77, None]


def test_a_device_is_up_unless_a_version_has_lost_it() -> None:
    """An unloaded model says 1, as the minimum of all workers counts."""
    registry = Registry()
    metrics = ModelMetrics(registry, "one")

    def values(name: str) -> list[float | None]:
        labels = [{"model": "one", "device": device} for device in ("0", "5")]
        return [registry.get_sample_value(f"headscope_device_{name}", one) for one in labels]

    assert values("up") == [None, None]
    metrics.on_devices([DeviceState(0, "serving", 7), DeviceState(5, "serving", 0)])
    assert (values("up"), values("queued_tokens")) == ([1, 1], [7, 0])
    lost = [DeviceState(0, "serving", 1), DeviceState(5, "lost", 0)]
    working = [DeviceState(0, "serving", 2), DeviceState(5, "serving", 4)]
    for versions in (lost + working, working + lost):
        metrics.on_devices(versions)
        assert (values("up"), values("queued_tokens")) == ([1, 0], [3, 4])
    metrics.unloaded()
    assert (values("up"), values("queued_tokens")) == ([1, 1], [0, 0])


def test_only_models_that_have_gone_are_left_out() -> None:
    registry = CollectorRegistry()
    versions = PresentSeries(Gauge(VERSIONS, "Versions.", ["model", "state"], registry=registry))
    tokens = Counter("t", "Tokens.", ["model"], registry=registry)
    for model in ("a", "b", "never counted"):
        tokens.labels(model).inc(0)

    def reported() -> list[tuple[str, ...]]:
        families = LoadedModels(registry).collect()
        samples = [one for family in families for one in family.samples]
        return [tuple(one.labels.values()) for one in samples if not one.name.endswith("_created")]

    versions.set({("a", "serving"): 1, ("b", "loading"): 1})
    every = [("a",), ("b",), ("never counted",)]
    assert reported() == [("a", "serving"), ("b", "loading"), *every]
    versions.set({("a", "draining"): 2})
    assert reported() == [("a", "draining"), ("a",), ("never counted",)]
