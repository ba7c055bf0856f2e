"""All metrics of the service: of HTTP, of each model, and of the service as a whole.

docs/metrics.md lists them. Their names are defined only in `http_metrics`, `model_metrics` and
`service_metrics`.
"""

from __future__ import annotations

import os
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.openmetrics import exposition as openmetrics

from service.telemetry.http_metrics import HttpMetrics
from service.telemetry.loaded_models import LoadedModels
from service.telemetry.model_metrics import ENGINES, VERSIONS, ModelFamilies, ModelMetrics
from service.telemetry.processes import ServiceProcesses
from service.telemetry.service_metrics import ServiceMetrics

disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """Metrics of a process.

    Each of several workers keeps its values in files that all workers read, so any worker reports
    the metrics of the service. A restarted worker continues from the values in its files.
    """

    def __init__(self, shared: Path | None = None) -> None:
        """Declare all metrics.

        Args:
            shared: folder of the workers' values, after a call of `shared.share`.

        """
        self.registry = registry = CollectorRegistry()
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
        return generate_latest(self._reported)

    def render_openmetrics(self) -> bytes:
        """Render the metrics as OpenMetrics 1.0.0, with exemplars if there is one process."""
        text: bytes = openmetrics.generate_latest(  # type: ignore[no-untyped-call]
            self._reported, version="1.0.0"
        )
        return text
