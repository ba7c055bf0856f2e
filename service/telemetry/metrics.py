"""Every metric of the service, declared here and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from model.artifact.compare import Kind
from service.engines.contract import Task, TextTask
from service.scheduler.admission import RefusalReason
from service.scheduler.lanes import LANE_SHARES, LaneName
from service.telemetry.processes import ServiceProcesses

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


class Metrics:
    """The metrics of one process; also what its schedulers report to.

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
        self.refused_requests = Counter(
            "headscope_refused_requests",
            "Requests that the queue did not take (tokens, texts, wait), or that waited too long.",
            ["lane", "reason"],
            registry=registry,
        )
        self.queue_tokens = Gauge(
            "headscope_queue_tokens",
            "Tokens waiting in a lane of every model's own engine.",
            ["lane"],
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.degraded = Gauge(
            "headscope_degraded",
            "1 while a model's own engine has failed and another serves in its place.",
            registry=registry,
            multiprocess_mode="livemax",
        )
        self.verified_batches = Counter(
            "headscope_verified_batches",
            "Batches that PyTorch computed again: passed, failed, or unknown.",
            ["result"],
            registry=registry,
        )
        self.live_max_abs_diff = Gauge(
            "headscope_live_max_abs_diff",
            "The largest difference to PyTorch of any batch that it computed again.",
            ["kind"],
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._worst: dict[Kind, float] = {}
        self._stood_in: set[str] = set()
        """Models that another engine than their own serves."""
        self.engine = Gauge(
            "headscope_engine_info",
            "1, with what a model's own engine is and the provider that is really in use.",
            ["engine", "provider", "precision", "model"],
            registry=registry,
            multiprocess_mode="livemax",
        )
        self.workers = Gauge(
            "headscope_workers",
            "Processes that serve.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.worker_restarts = Counter(
            "headscope_worker_restarts",
            "Workers that were started again because they had ended.",
            registry=registry,
        )
        self.workers.set(1)
        of_lanes = (
            *(self.tokens, self.failed_batches, self.dropped_texts),
            *(self.batch_texts, self.batch_tokens, self.queue_seconds, self.inference_seconds),
        )
        for metric in of_lanes:  # so that every file is there from the start
            for lane in LANE_SHARES:
                metric.labels(lane)

    def batch_finished(
        self, lane: LaneName, tasks: Sequence[Task], waits: Sequence[float], seconds: float
    ) -> None:
        """A batch was computed."""
        lengths = [task.tokens for task in tasks if isinstance(task, TextTask)]
        self.inference_seconds.labels(lane).observe(seconds)
        if lengths:  # a batch of maps alone has no new text
            self.tokens.labels(lane).inc(sum(lengths))
            self.batch_texts.labels(lane).observe(len(lengths))
            self.batch_tokens.labels(lane).observe(sum(lengths))
        for wait in waits:
            self.queue_seconds.labels(lane).observe(wait)

    def batch_failed(self, lane: LaneName) -> None:
        """A batch ended in an error."""
        self.failed_batches.labels(lane).inc()

    def dropped(self, lane: LaneName) -> None:
        """A text was dropped before it was computed."""
        self.dropped_texts.labels(lane).inc()

    def refused(self, lane: LaneName, reason: RefusalReason) -> None:
        """A request was not admitted, or not computed in time."""
        self.refused_requests.labels(lane, reason).inc()

    def refused_unread(self, status: int) -> None:
        """What came was answered with an error before it was a request."""
        self.requests.labels("unmatched", str(status)).inc()

    def stood_in_for(self, model: str, *, stood_in: bool) -> None:
        """Whether another engine than its own serves a model."""
        if stood_in:
            self._stood_in.add(model)
        else:
            self._stood_in.discard(model)
        self.degraded.set(bool(self._stood_in))

    def live_difference(self, kind: Kind, max_abs_diff: float) -> None:
        """A batch was computed again, and was so far from it."""
        self._worst[kind] = max(self._worst.get(kind, 0.0), max_abs_diff)
        self.live_max_abs_diff.labels(kind).set(self._worst[kind])

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self._scraped)
