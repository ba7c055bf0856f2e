"""Metrics of the service as a whole: versions, state and limits."""

from __future__ import annotations

import platform
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from service.settings import Settings
from service.system import machine
from service.system.distribution import version

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
