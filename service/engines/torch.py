"""PyTorch engine. One process of all models computes; the service never imports torch."""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from model.artifact.manifest import Artifact
from model.runtimes.capabilities import lacking_weights
from service.engines.contract import Engine, Output, Task
from service.engines.runtime import OUT_OF_MEMORY, out_of_memory
from service.errors import EngineFailed, EngineNotInstalled, EngineTimeout, EngineUnavailable
from service.system import logs, resources

START_TIMEOUT_SECONDS = 120.0
IDLE_SECONDS = 300.0
"""Seconds without a batch after which the process ends; the next batch starts another."""

_log = logging.getLogger("headscope")
Answer = list[Output] | str


class TorchHost:
    """Handle of a process of several encoders, connected by a socket pair.

    Messages are (folder, tasks) → (outputs, or the name of an exception), one at a time. The first
    message with a folder loads its encoder.
    """

    def __init__(self, threads: int | None = None, idle_seconds: float | None = None) -> None:
        """Initialise without starting the process.

        Usable cores compute a batch together, unless `threads` do. The process ends after
        `idle_seconds` without a batch; never if None.
        """
        self._threads = threads or len(os.sched_getaffinity(0))
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._loaded: set[Path] = set()
        self._failed = False
        self._last_used = 0.0

    @property
    def alive(self) -> bool:
        """Whether it can compute: its process runs, or has ended only because it was idle."""
        process = self._process
        runs = process is None or process.poll() is None
        return not self._failed and (runs or process is not self._process)

    @property
    def pid(self) -> int | None:
        """Id of the process; None if there is none."""
        return self._process.pid if self._process else None

    def run(self, folder: Path, tasks: Sequence[Task], timeout_seconds: float) -> Answer:
        """Compute a batch; start the process and load the encoder first if needed.

        Without tasks, the encoder is only loaded. The time limit begins once the encoder is loaded.
        """
        with self._lock:
            if self._failed:
                raise ended()
            if self._process is None:
                self._start()
            if folder not in self._loaded:
                timeout_seconds += START_TIMEOUT_SECONDS
            answer = self._ask((str(folder), list(tasks)), timeout_seconds)
            if not isinstance(answer, str):
                self._loaded.add(folder)
            self._last_used = time.monotonic()
            return answer

    def close(self) -> None:
        """End the process permanently."""
        self._failed = True
        self._end()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-m", "service.engines.torch_process"]
            command += [str(theirs.fileno()), str(self._threads), *logs.chosen()]
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=resources.torch_environment(),
            )
        self._connection = Connection(ours.detach())
        self._last_used = time.monotonic()
        if self._idle_seconds is not None:
            threading.Thread(
                target=self._end_when_idle, args=(self._process, self._idle_seconds), daemon=True
            ).start()

    def _ask(self, message: tuple[str, list[Task]], timeout_seconds: float) -> Answer:
        connection = self._connection
        if connection is None:
            raise ended()
        try:
            connection.send(message)
            if not connection.poll(timeout_seconds):
                self.close()
                raise EngineTimeout(f"PyTorch did not answer within {timeout_seconds:g} s")
            answer: Answer = connection.recv()
        except (EOFError, OSError):
            self.close()
            raise ended() from None
        return answer

    def _end_when_idle(self, process: subprocess.Popen[bytes], idle_seconds: float) -> None:
        """End a process after `idle_seconds` without a batch; runs in a thread of its own."""
        while process.poll() is None:
            left = self._last_used + idle_seconds - time.monotonic()
            if left > 0:
                time.sleep(left)
                continue
            with self._lock:
                if time.monotonic() >= self._last_used + idle_seconds and not self._failed:
                    _log.info("PyTorch had no batch for %g s: its process ends", idle_seconds)
                    self._end()
                    return

    def _end(self) -> None:
        """Detach the process, then end it: `alive` depends on this order."""
        process, connection = self._process, self._connection
        self._process, self._connection = None, None
        self._loaded.clear()
        if connection is not None:
            connection.close()
        if process is not None:
            process.kill()
            process.wait()


class TorchHosts:
    """Provider of the host that a service's engines share; replaces a failed host."""

    def __init__(self, threads: int | None = None, idle_seconds: float | None = None) -> None:
        """Initialise without a host; arguments as for `TorchHost`."""
        self._threads, self._idle_seconds = threads, idle_seconds
        self._lock = threading.Lock()
        self._host: TorchHost | None = None
        self._users = 0

    def acquire(self) -> TorchHost:
        """Return the host for another engine, which has to release it."""
        with self._lock:
            if self._host is None or not self._host.alive:
                self._host, self._users = TorchHost(self._threads, self._idle_seconds), 0
            self._users += 1
            return self._host

    def release(self, host: TorchHost) -> None:
        """Release the host of an engine; close it after its last engine."""
        with self._lock:
            if host is self._host:
                self._users -= 1
                if self._users > 0:
                    return
                self._host = None
        host.close()


def ended() -> EngineUnavailable:
    """Return the error for a process that has ended."""
    return EngineUnavailable("the PyTorch process has ended", retry_after_seconds=1)


class TorchEngine(Engine):
    """Engine that computes the artifact's float32 encoder in eager PyTorch."""

    name = "torch"
    provider = "torch-cpu"
    concurrency = 1

    def __init__(
        self, artifact: Artifact, timeout_seconds: float, hosts: TorchHosts | None = None
    ) -> None:
        """Start the process, unless models share one, and wait until it has loaded the encoder.

        Raises:
            EngineNotInstalled: torch is not installed, or the artifact has no weights for it.
            EngineUnavailable: the process ended, or did not load in time.

        """
        check_installed(artifact)
        self.hidden_size = artifact.manifest.config.hidden_size
        self._folder = artifact.folder
        self._timeout_seconds = timeout_seconds
        self._hosts = hosts or TorchHosts()
        self._host = self._hosts.acquire()
        self._closed = False
        answer = self._host.run(self._folder, [], timeout_seconds)
        if isinstance(answer, str):
            self.close()
            raise EngineUnavailable(f"PyTorch cannot load the model: {answer}")

    @property
    def alive(self) -> bool:
        """Whether the process runs, or would be started for the next batch."""
        return not self._closed and self._host.alive

    @property
    def pid(self) -> int | None:
        """Id of the process; None if there is none."""
        return self._host.pid

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        """Compute the tasks in the other process, the texts in one packed forward pass."""
        answer = self._host.run(self._folder, tasks, self._timeout_seconds)
        if answer == OUT_OF_MEMORY:
            raise out_of_memory(self.provider)
        if isinstance(answer, str):
            raise EngineFailed(f"PyTorch failed: {answer}")
        return answer

    def close(self) -> None:
        """Release the process, which ends with its last engine."""
        if not self._closed:
            self._closed = True
            self._hosts.release(self._host)


def check_installed(artifact: Artifact) -> None:
    """Raise if PyTorch cannot compute an artifact here."""
    if message := lacking_weights(artifact.manifest):
        raise EngineNotInstalled(message)
    if importlib.util.find_spec("torch") is None:
        raise EngineNotInstalled("PyTorch is not installed here")
