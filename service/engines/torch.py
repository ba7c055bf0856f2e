"""The PyTorch engine, in a process of its own: the service never imports torch."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection

from model.artifact.foreign import not_in_graph
from model.artifact.manifest import Artifact
from model.artifact.serving_only import left_out
from service.engines.contract import Engine, Output, Task
from service.engines.memory import OUT_OF_MEMORY, out_of_memory
from service.errors import EngineFailed, EngineNotInstalled, EngineTimeout, EngineUnavailable
from service.system import logs, resources

START_TIMEOUT_SECONDS = 120.0


class TorchEngine(Engine):
    """The artifact's float32 encoder in eager PyTorch, behind a socket pair.

    Messages are (tasks) → (outputs or the name of an exception), one at a time.
    """

    name = "torch"
    provider = "torch-cpu"
    concurrency = 1

    def __init__(
        self, artifact: Artifact, timeout_seconds: float, threads: int | None = None
    ) -> None:
        """Start the process and wait until it has loaded the encoder.

        Args:
            artifact: a checked artifact.
            timeout_seconds: how long a batch may take.
            threads: that compute a batch together; the number of usable cores when None.

        Raises:
            EngineNotInstalled: torch is not there, or the artifact has no weights for it.
            EngineUnavailable: the process ended, or did not load in time.

        """
        check_installed(artifact)
        self.hidden_size = artifact.manifest.config.hidden_size
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-m", "service.engines.torch_process"]
            command += [str(artifact.folder), str(theirs.fileno())]
            command.append(str(threads or len(os.sched_getaffinity(0))))
            command += logs.chosen()
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=resources.torch_environment(),
            )
        self._connection = Connection(ours.detach())
        self._receive(START_TIMEOUT_SECONDS)

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        """One packed forward pass in the other process."""
        with self._lock:
            try:
                self._connection.send(list(tasks))
            except OSError:
                self.close()
                raise _ended() from None
            answer = self._receive(self._timeout_seconds)
        if answer == OUT_OF_MEMORY:
            raise out_of_memory(self.provider)
        if isinstance(answer, str):
            raise EngineFailed(f"PyTorch failed: {answer}")
        return answer

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def _receive(self, timeout_seconds: float) -> list[Output] | str:
        try:
            if not self._connection.poll(timeout_seconds):
                self.close()
                raise EngineTimeout(f"PyTorch did not answer within {timeout_seconds:g} s")
            answer: list[Output] | str = self._connection.recv()
        except (EOFError, OSError):
            self.close()
            raise _ended() from None
        return answer


def _ended() -> EngineUnavailable:
    return EngineUnavailable("the PyTorch process has ended", retry_after_seconds=1)


def check_installed(artifact: Artifact) -> None:
    """Refuse an artifact that PyTorch cannot compute here.

    Raises:
        EngineNotInstalled: torch is not there, or the artifact has no weights for it.

    """
    if artifact.manifest.foreign:
        raise EngineNotInstalled(not_in_graph("what PyTorch computes with"))
    if importlib.util.find_spec("torch") is None:
        raise EngineNotInstalled("PyTorch is not installed here")
    if artifact.manifest.serving_only:
        raise EngineNotInstalled(left_out("PyTorch"))
