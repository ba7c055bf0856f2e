"""PyTorch engine. One process of all models computes; the service never imports torch."""

from __future__ import annotations

import importlib.util
import os
import threading

from model.artifact.manifest import Artifact
from model.runtimes.capabilities import lacking_weights
from model.runtimes.contract import Resources
from service.engines.process import EngineProcess, ProcessEngine, Source
from service.errors import EngineNotInstalled

IDLE_SECONDS = 300.0
"""Seconds without a batch after which the process ends; the next batch starts another."""


class TorchHosts:
    """Provider of the process that a service's engines share; replaces a failed process."""

    def __init__(self, threads: int | None = None, idle_seconds: float | None = None) -> None:
        """Initialise without a process, which ends after `idle_seconds` without a batch.

        Usable cores compute a batch together, unless `threads` do.
        """
        self.threads = threads or len(os.sched_getaffinity(0))
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._host: EngineProcess | None = None
        self._users = 0

    def acquire(self) -> EngineProcess:
        """Return the process for another engine, which has to release it."""
        with self._lock:
            if self._host is None or not self._host.alive:
                host = EngineProcess("PyTorch", idle_seconds=self._idle_seconds)
                self._host, self._users = host, 0
            self._users += 1
            return self._host

    def release(self, host: EngineProcess) -> None:
        """Release the process of an engine; end it after its last engine."""
        with self._lock:
            if host is self._host:
                self._users -= 1
                if self._users > 0:
                    return
                self._host = None
        host.close()


class TorchEngine(ProcessEngine):
    """Engine that computes the artifact's float32 encoder in eager PyTorch."""

    def __init__(
        self, artifact: Artifact, timeout_seconds: float, hosts: TorchHosts | None = None
    ) -> None:
        """Start the process, unless models share one, and wait until it has loaded the encoder.

        Raises:
            EngineNotInstalled: torch is not installed, or the artifact has no weights for it.
            EngineUnavailable: the process ended, or did not load in time.

        """
        check_installed(artifact)
        self._hosts = hosts or TorchHosts()
        self._closed = False
        source = Source(str(artifact.folder), "torch", Resources(threads=self._hosts.threads))
        super().__init__(self._hosts.acquire(), source, timeout_seconds)

    @property
    def alive(self) -> bool:
        """Whether the process runs, or would be started for the next batch."""
        return not self._closed and super().alive

    def close(self) -> None:
        """Release the process, which ends with its last engine."""
        if not self._closed:
            self._closed = True
            self._hosts.release(self._process)


def check_installed(artifact: Artifact) -> None:
    """Raise if PyTorch cannot compute an artifact here."""
    if message := lacking_weights(artifact.manifest):
        raise EngineNotInstalled(message)
    if importlib.util.find_spec("torch") is None:
        raise EngineNotInstalled("PyTorch is not installed here")
