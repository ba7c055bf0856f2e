"""Every metric of the service: of HTTP, of each model, and of the service as a whole.

docs/metrics.md lists them. What they are called is in `http_metrics`, `model_metrics` and
`service_metrics`, and nowhere else.
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
from service.telemetry.model_metrics import ModelFamilies, ModelMetrics
from service.telemetry.processes import ServiceProcesses
from service.telemetry.service_metrics import ServiceMetrics

disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The metrics of one process.

    Of several workers, each keeps its values in files that all of them read, and a worker that is
    started again goes on with what was there: whoever is asked, the answer is the service's.
    """

    def __init__(self, shared: Path | None = None) -> None:
        """Declare all metrics.

        Args:
            shared: the folder of the workers' values, after a call of `shared.share`.

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
        self._families = ModelFamilies(registry)
        self._models: dict[str, ModelMetrics] = {}

    def of_model(self, name: str) -> ModelMetrics:
        """The metrics of a model; always the same of a name."""
        if name not in self._models:
            self._models[name] = ModelMetrics(self._families, name)
        return self._models[name]

    def render(self) -> bytes:
        """Prometheus' text format, version 0.0.4."""
        return generate_latest(self._scraped)

    def render_openmetrics(self) -> bytes:
        """OpenMetrics 1.0.0; of a service of one process with exemplars."""
        text: bytes = openmetrics.generate_latest(  # type: ignore[no-untyped-call]
            self._scraped, version="1.0.0"
        )
        return text
