"""Metrics of a process and its models, from which the metrics of the whole service are rendered."""

from __future__ import annotations

import collections
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from service.engines.contract import Task, TextTask
from service.scheduler.call import RefusalReason
from service.scheduler.lanes import LANE_SHARES, Event, LaneName
from service.settings import Settings
from service.system import machine
from service.system.distribution import version
from service.telemetry.registry import MOST_NOTES, Registry, observe
from service.telemetry.requests import HttpMetrics
from service.telemetry.shared import ServiceProcesses

VERSIONS = "headscope_model_versions"
"""Gauge that counts the versions of each model in memory."""
PRESENT = (VERSIONS, "headscope_engine_info")
"""Gauges whose series of value 0 are not reported."""


class LoadedModels(Collector):
    """Metrics of a registry without the series of models that no process has in memory.

    The values of these models are kept, so the counters of a model that is loaded again continue.
    """

    def __init__(self, source: CollectorRegistry) -> None:
        self._source = source

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        families = [*self._source.collect()]
        counts = collections.Counter[str]()
        for family in families:
            for sample in family.samples if family.name == VERSIONS else ():
                counts[sample.labels["model"]] += int(sample.value)
        absent = {model for model, count in counts.items() if not count}
        for family in families:
            zeros = family.name not in PRESENT
            family.samples = [
                sample
                for sample in family.samples
                if sample.labels.get("model") not in absent and (zeros or sample.value)
            ]
            yield family


VERIFICATION_RESULTS = ("passed", "failed", "unknown")
Batch = tuple[float, int, int]
"""Seconds, texts and tokens of a batch."""


class ModelMetrics:
    """Metrics of one model, updated by its schedulers, watch and verification."""

    def __init__(self, registry: Registry, model: str) -> None:
        """Start every series at 0, so that the first event is an increase."""
        self._all = registry
        self._model = model
        self._warnings = {
            "truncated": registry.truncated_inputs,
            "prompt_missing": registry.prompt_missing_inputs,
            "unknown_tokens": registry.unknown_token_inputs,
        }
        """Name of a warning → counter."""
        for metric in (*self._warnings.values(), registry.engine_restarts):
            metric.labels(model)
        for result in VERIFICATION_RESULTS:
            registry.verified_batches.labels(model, result)
        for lane in LANE_SHARES:
            for series in (
                *(registry.failed_batches, registry.dropped_texts, registry.tokens),
                *(registry.batch_texts, registry.batch_tokens, registry.inference_seconds),
            ):
                series.labels(model, lane)
            for reason in get_args(RefusalReason):
                registry.queue_refused.labels(model, lane, reason)
        lengths, seconds = registry.input_tokens.labels(model), registry.queue_seconds
        self._lengths: list[int] = registry.notes(partial(observe, lengths))
        self._waits: dict[str, list[float]] = {
            lane: registry.notes(partial(observe, seconds.labels(model, lane)))
            for lane in LANE_SHARES
        }
        self._batches: dict[str, list[Batch]] = {
            lane: registry.notes(partial(self._count, lane)) for lane in LANE_SHARES
        }

    def count(self, event: Event | Literal["verified_batches"], *labels: str) -> None:
        """Count an event by the labels of its counter beside the model."""
        counter: Counter = getattr(self._all, event)
        counter.labels(self._model, *labels).inc()

    def _count(self, lane: LaneName, batches: list[Batch]) -> None:
        """Count noted batches of a lane; a batch with only maps has no new text."""
        labels, with_texts = (self._model, lane), [batch for batch in batches if batch[1]]
        texts, tokens = [batch[1] for batch in with_texts], [batch[2] for batch in with_texts]
        observe(self._all.inference_seconds.labels(*labels), [batch[0] for batch in batches])
        self._all.tokens.labels(*labels).inc(sum(tokens))
        observe(self._all.batch_texts.labels(*labels), texts)
        observe(self._all.batch_tokens.labels(*labels), tokens)

    def batch_finished(self, lane: LaneName, tasks: Sequence[Task], seconds: float) -> None:
        """Note a computed batch."""
        lengths = [task.tokens for task in tasks if isinstance(task, TextTask)]
        batches = self._batches[lane]
        batches.append((seconds, len(lengths), sum(lengths)))
        if len(batches) >= MOST_NOTES:
            self._all.count()

    def waited(self, lane: LaneName, seconds: float) -> None:
        """Note a request's wait for its first batch, which may never have begun."""
        self._waits[lane].append(seconds)

    def tokenized(self, lengths: Sequence[int], warnings: Mapping[str, int]) -> None:
        """Note the lengths of a request's inputs, and count the warnings about them."""
        self._lengths.extend(lengths)
        for name, count in warnings.items():
            self._warnings[name].labels(self._model).inc(count)

    def pictures_read(self, seconds: float) -> None:
        """Record the time until the pictures of a request were decoded and prepared."""
        self._all.picture_seconds.labels(self._model).observe(seconds)


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
