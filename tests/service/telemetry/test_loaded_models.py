"""Series of models that no process has in memory."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from service.telemetry.model_metrics import LoadedModels, PresentSeries


def test_only_models_that_have_gone_are_left_out() -> None:
    registry = CollectorRegistry()
    versions = PresentSeries(Gauge("v", "Versions.", ["model", "state"], registry=registry))
    tokens = Counter("t", "Tokens.", ["model"], registry=registry)
    for model in ("a", "b", "never counted"):
        tokens.labels(model).inc(0)

    def reported() -> list[tuple[str, ...]]:
        families = LoadedModels(registry, "v", ("v",)).collect()
        samples = [one for family in families for one in family.samples]
        return [tuple(one.labels.values()) for one in samples if not one.name.endswith("_created")]

    versions.set({("a", "serving"): 1, ("b", "loading"): 1})
    every = [("a",), ("b",), ("never counted",)]
    assert reported() == [("a", "serving"), ("b", "loading"), *every]
    versions.set({("a", "draining"): 2})
    assert reported() == [("a", "draining"), ("a",), ("never counted",)]
