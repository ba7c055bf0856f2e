"""Metrics of a process, from which the metrics of the whole service are rendered."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.openmetrics import exposition as openmetrics

from service.settings import Settings
from service.system import machine
from service.system.distribution import version
from service.telemetry.model_metrics import LoadedModels, ModelMetrics, PresentSeries
from service.telemetry.registry import Registry
from service.telemetry.requests import HttpMetrics
from service.telemetry.shared import ServiceProcesses

LOAD_FAILURES = ("invalid", "memory", "refused")
"""Reasons of failed loads: the version is damaged, does not fit, or may not be exported."""

disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """Metrics of a process.

    Each of several workers keeps its values in files that all workers read, so any worker reports
    the metrics of the service. A restarted worker continues from the values in its files.
    """

    def __init__(self, shared: Path | None = None) -> None:
        """Start all metrics; `shared` has the workers' values, after a call of `shared.share`."""
        self.registry = registry = Registry()
        self._scraped = CollectorRegistry() if shared else registry
        if shared:
            MultiProcessCollector(self._scraped, str(shared))  # type: ignore[no-untyped-call]
            self._scraped.register(ServiceProcesses(os.getppid()))
        else:
            ProcessCollector(registry=registry)
        for reason in LOAD_FAILURES:
            registry.model_load_failures.labels(reason)
        registry.workers.set(1)
        registry.build_info.labels(version(), platform.python_version()).set(1)
        self.http = HttpMetrics(registry)
        self.engines = PresentSeries(registry.engine_info)
        self.versions = PresentSeries(registry.model_versions)
        self._reported = LoadedModels(self._scraped)
        self._models: dict[str, ModelMetrics] = {}

    def limited(self, settings: Settings) -> None:
        """Set the limits from the settings."""
        limits = self.registry
        limits.models_bytes_limit.set(settings.memory_budget or 0)
        limits.body_bytes_in_flight_limit.set(settings.max_body_bytes_in_flight)
        limits.reply_bytes_in_flight_limit.set(settings.max_bytes_in_flight)
        limits.request_seconds_limit.set(settings.request_timeout_seconds)
        limits.queue_seconds_limit.set(settings.queue_timeout_seconds)
        limits.queue_seconds_target.set(settings.queue_target_seconds)

    def refresh(self) -> None:
        """Count noted events, and update the requests in flight and the available memory."""
        self.registry.count()
        self.registry.requests_in_flight.set(self.http.in_flight)
        if (available := machine.available_memory()) is not None:
            self.registry.memory_available_bytes.set(available)

    def of_model(self, name: str) -> ModelMetrics:
        """Return the metrics of a model, the same object for the same name."""
        if name not in self._models:
            self._models[name] = ModelMetrics(self.registry, name)
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
