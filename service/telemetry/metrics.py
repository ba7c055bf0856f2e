"""All metrics of the service: of HTTP, of each model, and of the service as a whole.

docs/metrics.md lists them. Their names are defined only here, in `http_metrics` and in
`model_metrics`.
"""

from __future__ import annotations

import os
import platform
from functools import partial
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.openmetrics import exposition as openmetrics

from service.settings import Settings
from service.system import machine
from service.system.distribution import version
from service.telemetry.http_metrics import HttpMetrics
from service.telemetry.model_metrics import (
    ENGINES,
    VERSIONS,
    LoadedModels,
    ModelFamilies,
    ModelMetrics,
)
from service.telemetry.registry import Registry
from service.telemetry.shared import ServiceProcesses

LOAD_FAILURES = ("invalid", "memory", "refused")
"""Reasons of failed loads: the version is damaged, does not fit, or may not be exported."""


class ServiceMetrics:
    """Gauges of a process, aggregated over all workers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Declare the metrics."""
        summed = partial(Gauge, registry=registry, multiprocess_mode="livesum")
        least = partial(Gauge, registry=registry, multiprocess_mode="livemin")
        counter = partial(Counter, registry=registry)
        self.build_info = Gauge(
            "headscope_build_info",
            "1, labelled with the versions of Headscope and Python.",
            ["version", "python"],
            registry=registry,
            multiprocess_mode="livemax",
        )
        self.ready = least("headscope_ready", "1 unless readiness is known to fail.")
        self.connections = summed("headscope_connections", "Open connections of clients.")
        self.requests_in_flight = summed(
            "headscope_requests_in_flight",
            "Requests whose reply is not complete, including the request for metrics.",
        )
        self.body_bytes = summed(
            "headscope_body_bytes_in_flight", "Bytes of request bodies in memory."
        )
        self.reply_bytes = summed(
            "headscope_reply_bytes_in_flight", "Bytes of replies in memory or reserved."
        )
        self.body_bytes_limit = summed(
            "headscope_body_bytes_in_flight_limit", "Maximum bytes of request bodies in flight."
        )
        self.reply_bytes_limit = summed(
            "headscope_reply_bytes_in_flight_limit", "Maximum bytes of replies in flight."
        )
        self.request_seconds_limit = least(
            "headscope_request_seconds_limit", "Maximum time until a reply begins."
        )
        self.queue_seconds_limit = least(
            "headscope_queue_seconds_limit", "Maximum wait of a request in a queue."
        )
        self.queue_seconds_target = least(
            "headscope_queue_seconds_target", "Target wait, exceeded only by bursts."
        )
        self.memory_available = least(
            "headscope_memory_available_bytes",
            "Bytes available to processes, by the machine or the container's limit.",
        )
        self.workers = summed("headscope_workers", "Number of serving processes.")
        self.worker_restarts = counter("headscope_worker_restarts", "Restarts of ended workers.")
        self.models_bytes = summed(
            "headscope_models_bytes", "Bytes of the models in memory, measured or predicted."
        )
        self.models_bytes_limit = summed(
            "headscope_models_bytes_limit", "Maximum bytes of the models in memory; 0 is no limit."
        )
        self.model_loads = counter("headscope_model_loads", "Models loaded after the start.")
        self.model_load_failures = counter(
            "headscope_model_load_failures", "Failed loads of models.", ["reason"]
        )
        self.model_evictions = counter(
            "headscope_model_evictions", "Models unloaded to make room for another."
        )
        for reason in LOAD_FAILURES:
            self.model_load_failures.labels(reason)
        self.workers.set(1)
        self.build_info.labels(version(), platform.python_version()).set(1)

    def limited(self, settings: Settings) -> None:
        """Set the limits from the settings."""
        self.models_bytes_limit.set(settings.memory_budget or 0)
        self.body_bytes_limit.set(settings.max_body_bytes_in_flight)
        self.reply_bytes_limit.set(settings.max_bytes_in_flight)
        self.request_seconds_limit.set(settings.request_timeout_seconds)
        self.queue_seconds_limit.set(settings.queue_timeout_seconds)
        self.queue_seconds_target.set(settings.queue_target_seconds)

    def refresh_memory(self) -> None:
        """Update the available memory, if the system reports it."""
        if (available := machine.available_memory()) is not None:
            self.memory_available.set(available)


disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """Metrics of a process.

    Each of several workers keeps its values in files that all workers read, so any worker reports
    the metrics of the service. A restarted worker continues from the values in its files.
    """

    def __init__(self, shared: Path | None = None) -> None:
        """Declare all metrics; `shared` has the workers' values, after a call of `shared.share`."""
        self.registry = registry = Registry()
        self._scraped = CollectorRegistry() if shared else registry
        if shared:
            MultiProcessCollector(self._scraped, str(shared))  # type: ignore[no-untyped-call]
            self._scraped.register(ServiceProcesses(os.getppid()))
        else:
            ProcessCollector(registry=registry)
        self.http = HttpMetrics(registry)
        self.service = ServiceMetrics(registry)
        self.of_models = ModelFamilies(registry)
        self._reported = LoadedModels(self._scraped, VERSIONS, (VERSIONS, ENGINES))
        self._models: dict[str, ModelMetrics] = {}

    def of_model(self, name: str) -> ModelMetrics:
        """Return the metrics of a model, the same object for the same name."""
        if name not in self._models:
            self._models[name] = ModelMetrics(self.of_models, name)
        return self._models[name]

    def render(self) -> bytes:
        """Render the metrics in Prometheus' text format, version 0.0.4."""
        self.registry.count()
        return generate_latest(self._reported)

    def render_openmetrics(self) -> bytes:
        """Render the metrics as OpenMetrics 1.0.0, with exemplars if there is one process."""
        self.registry.count()
        text: bytes = openmetrics.generate_latest(  # type: ignore[no-untyped-call]
            self._reported, version="1.0.0"
        )
        return text
