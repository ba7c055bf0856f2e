"""Metrics of the service as a whole: versions, state and limits."""

from __future__ import annotations

import platform
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from service.settings import Settings
from service.system import machine
from service.system.distribution import version


class ServiceMetrics:
    """Gauges of a process, aggregated over all workers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Declare the metrics."""
        summed = partial(Gauge, registry=registry, multiprocess_mode="livesum")
        least = partial(Gauge, registry=registry, multiprocess_mode="livemin")
        self.build_info = Gauge(
            "headscope_build_info",
            "1, with the versions of Headscope and of Python.",
            ["version", "python"],
            registry=registry,
            multiprocess_mode="livemax",
        )
        self.ready = least(
            "headscope_ready", "1 while nothing is known for which readiness would fail."
        )
        self.connections = summed("headscope_connections", "Open connections of clients.")
        self.body_bytes = summed(
            "headscope_body_bytes_in_flight", "Bytes of requests' bodies that are in memory."
        )
        self.reply_bytes = summed(
            "headscope_reply_bytes_in_flight", "Bytes of replies that are in memory or reserved."
        )
        self.body_bytes_limit = summed(
            "headscope_body_bytes_in_flight_limit", "Most bytes of bodies in flight."
        )
        self.reply_bytes_limit = summed(
            "headscope_reply_bytes_in_flight_limit", "Most bytes of replies in flight."
        )
        self.request_seconds_limit = least(
            "headscope_request_seconds_limit", "Time until the reply to a request has begun."
        )
        self.queue_seconds_limit = least(
            "headscope_queue_seconds_limit", "Most time that a request may wait."
        )
        self.queue_seconds_target = least(
            "headscope_queue_seconds_target", "Wait that only bursts may exceed."
        )
        self.memory_available = least(
            "headscope_memory_available_bytes",
            "Bytes that processes can still take, of the machine or of the container's limit.",
        )
        self.workers = summed("headscope_workers", "Processes that serve.")
        self.worker_restarts = Counter(
            "headscope_worker_restarts",
            "Workers that were started again because they had ended.",
            registry=registry,
        )
        self.workers.set(1)
        self.build_info.labels(version(), platform.python_version()).set(1)

    def limited(self, settings: Settings) -> None:
        """Set the limits from the settings."""
        self.body_bytes_limit.set(settings.max_body_bytes_in_flight)
        self.reply_bytes_limit.set(settings.max_bytes_in_flight)
        self.request_seconds_limit.set(settings.request_timeout_seconds)
        self.queue_seconds_limit.set(settings.queue_timeout_seconds)
        self.queue_seconds_target.set(settings.queue_target_seconds)

    def refresh_memory(self) -> None:
        """Update the available memory, if the system reports it."""
        if (available := machine.available_memory()) is not None:
            self.memory_available.set(available)
