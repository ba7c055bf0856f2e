"""Every metric of the service, declared here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from service.engines.base import Task
from service.lanes import LANE_SHARES, LaneName

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


class Metrics:
    """The metrics of one service; also what its schedulers report to."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "headscope_requests",
            "Requests answered, by route template and status.",
            ["route", "status"],
            registry=registry,
        )
        self.request_seconds = Histogram(
            "headscope_request_seconds",
            "From the request's last byte in to the reply's last byte out.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.disconnects = Counter(
            "headscope_client_disconnects",
            "Requests whose client left before the reply was complete.",
            registry=registry,
        )
        self.tokens = Counter(
            "headscope_tokens",
            "Tokens computed, without padding.",
            ["lane"],
            registry=registry,
        )
        self.batch_texts = Histogram(
            "headscope_batch_texts",
            "Texts of a batch.",
            ["lane"],
            buckets=_SIZES,
            registry=registry,
        )
        self.batch_tokens = Histogram(
            "headscope_batch_tokens",
            "Tokens of a batch.",
            ["lane"],
            buckets=_SIZES,
            registry=registry,
        )
        self.queue_seconds = Histogram(
            "headscope_queue_seconds",
            "How long a text waited for its batch.",
            ["lane"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.inference_seconds = Histogram(
            "headscope_inference_seconds",
            "How long a batch took.",
            ["lane"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.failed_batches = Counter(
            "headscope_failed_batches",
            "Batches that ended in an error.",
            ["lane"],
            registry=registry,
        )
        self.dropped_texts = Counter(
            "headscope_dropped_texts",
            "Texts dropped before they were computed, because their client left.",
            ["lane"],
            registry=registry,
        )
        self.queue_tokens = Gauge(
            "headscope_queue_tokens",
            "Tokens waiting in a lane of the service's own engine.",
            ["lane"],
            registry=registry,
        )
        self.engine = Gauge(
            "headscope_engine_info",
            "1, with what the service's own engine is and the provider that is really in use.",
            ["engine", "provider", "precision", "model"],
            registry=registry,
        )
        for lane in LANE_SHARES:
            for metric in (self.tokens, self.failed_batches, self.dropped_texts):
                metric.labels(lane)

    def batch_finished(
        self, lane: LaneName, tasks: Sequence[Task], waits: Sequence[float], seconds: float
    ) -> None:
        """A batch was computed."""
        lengths = [task.tokens for task in tasks]
        self.tokens.labels(lane).inc(sum(lengths))
        self.batch_texts.labels(lane).observe(len(tasks))
        self.batch_tokens.labels(lane).observe(sum(lengths))
        self.inference_seconds.labels(lane).observe(seconds)
        for wait in waits:
            self.queue_seconds.labels(lane).observe(wait)

    def batch_failed(self, lane: LaneName) -> None:
        """A batch ended in an error."""
        self.failed_batches.labels(lane).inc()

    def dropped(self, lane: LaneName) -> None:
        """A text was dropped before it was computed."""
        self.dropped_texts.labels(lane).inc()

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)
