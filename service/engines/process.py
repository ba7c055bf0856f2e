"""Engines in a child process, whose libraries and devices can fail without the service.

PyTorch computes in one process for all models, so that the service never imports torch.

Messages go over a socket pair. A message is a pickle without its arrays, which follow in one piece:
large arrays are sent from where they are, and received into their final place.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import pickle
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from model.artifact.manifest import Artifact
from model.errors import DeviceLostError
from model.runtimes.capabilities import lacking_weights
from model.runtimes.contract import Resources
from service.engines.contract import Engine, Output, Task
from service.engines.runtime import OUT_OF_MEMORY, out_of_memory
from service.errors import EngineFailed, EngineNotInstalled, EngineTimeout, EngineUnavailable
from service.system import logs, resources

ALIGNED_BYTES = 8
LARGE_BYTES = 2**16
"""Minimum bytes of an array that is not copied before it is sent."""


def send(connection: socket.socket, message: object) -> None:
    """Send a message; `TimeoutError` if the other end does not read, `OSError` if it is closed."""
    arrays: list[pickle.PickleBuffer] = []
    body = pickle.dumps(message, 5, buffer_callback=arrays.append)
    parts = [memoryview(body), *(array.raw() for array in arrays)]
    sizes = np.array([len(parts), *(part.nbytes for part in parts)], np.int64)
    small: list[bytes | memoryview] = [sizes.tobytes()]
    for part in parts:
        if part.nbytes < LARGE_BYTES:
            small.append(part)
        else:
            connection.sendall(b"".join(small))
            connection.sendall(part)
            small.clear()
        small.append(bytes(-part.nbytes % ALIGNED_BYTES))
    connection.sendall(b"".join(small))


def receive(connection: socket.socket) -> Any:
    """Return the next message, whose arrays are writable parts of one buffer.

    Raise EOFError if the other end is closed, TimeoutError if the message does not come.
    """
    count = int.from_bytes(_read(connection, 8), sys.byteorder)
    sizes: list[int] = np.frombuffer(_read(connection, 8 * count), np.int64).tolist()
    ends = [*itertools.accumulate(size + -size % ALIGNED_BYTES for size in sizes)]
    buffer, starts = _read(connection, ends[-1]), [0, *ends]
    body, *arrays = (buffer[start : start + n] for start, n in zip(starts, sizes, strict=False))
    return pickle.loads(body, buffers=arrays)  # noqa: S301 - of our own process


def _read(connection: socket.socket, size: int) -> memoryview:
    view = left = np.empty(size, np.uint8).data
    while left:
        received = connection.recv_into(left)
        if not received:
            raise EOFError
        left = left[received:]
    return view


START_TIMEOUT_SECONDS, ENDING_SECONDS = 120.0, 10.0
"""Maximum seconds until a process has loaded an engine, and until one has ended that closes."""
IDLE = 0
"""Exit code of a process that ended because it was idle."""
TRAITS = ("provider", "concurrency", "hidden_size", "batch_tokens", "attention_kernels")
"""Attributes of an engine that its child process reports once it is loaded."""


@dataclass(frozen=True)
class Source:
    """Artifact and resources of an engine that a child process loads."""

    folder: str
    engine: str
    """`torch` or `onnx`."""
    resources: Resources


class Failure(NamedTuple):
    """Exception of a child process."""

    kind: str
    """Name of its class, or `OUT_OF_MEMORY`."""
    detail: str
    """Message about a device; empty for other errors, which may quote texts or paths."""


class EngineProcess:
    """Handle of a child process of engines, connected by a socket pair for each concurrent call."""

    def __init__(self, title: str, calls: int = 1, idle_seconds: float | None = None) -> None:
        """Initialise without starting the process.

        `title` names the process in messages. One that has a single call at a time may end after
        `idle_seconds` without a call, and the next call starts another.
        """
        self.title = title
        self._calls = calls
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connections = queue.SimpleQueue[socket.socket]()
        """Connections without a call, which are closed once the process has ended."""
        self._loaded: set[Source] = set()
        self._failed = False
        self.users = 0
        """Number of engines that use the process, if these share it."""

    @property
    def alive(self) -> bool:
        """Whether it can compute: its process runs, or has ended only because it was idle."""
        process = self._process
        runs = process is None or process.poll() is None
        return not self._failed and (runs or self._was_idle(process))

    @property
    def pid(self) -> int | None:
        """Id of the process; None if there is none."""
        return self._process.pid if self._process else None

    def ask(self, source: Source, method: str, *arguments: object, seconds: float) -> Any:
        """Return what a method of an engine returns, or a `Failure`; start and load as needed.

        The time limit begins once the engine is loaded. A process that exceeds it is ended.

        Raises:
            EngineTimeout: the process did not answer.
            EngineUnavailable: the process has ended.

        """
        with self._lock:
            if self._failed:
                raise self._ended()
            process = self._process
            if process is None or self._was_idle(process):
                process = self._start()
            connections, loaded = self._connections, self._loaded
        limit = seconds if source in loaded else seconds + START_TIMEOUT_SECONDS
        connection = connections.get()
        try:
            connection.settimeout(limit)
            send(connection, (source, method, arguments))
            answer = receive(connection)
        except TimeoutError:
            self.close()
            raise EngineTimeout(f"{self.title} did not answer within {limit:g} s") from None
        except (EOFError, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(ENDING_SECONDS)
            if self._was_idle(process) and not self._failed:
                return self.ask(source, method, *arguments, seconds=seconds)
            self.close()
            raise self._ended() from None
        finally:
            with self._lock:
                if self._process is not process:
                    connection.close()
                connections.put(connection)
        if not isinstance(answer, Failure):
            loaded.add(source)
        return answer

    def close(self) -> None:
        """End the process permanently."""
        self._failed = True
        with self._lock:
            self._end()

    def _was_idle(self, process: subprocess.Popen[bytes] | None) -> bool:
        """Return whether a process has ended because it was idle."""
        return self._idle_seconds is not None and process is not None and process.poll() == IDLE

    def _start(self) -> subprocess.Popen[bytes]:
        self._end()
        pairs = [socket.socketpair() for _ in range(self._calls)]
        descriptors = [theirs.fileno() for _, theirs in pairs]
        command = [sys.executable, "-P", "-m", "service.engines.child"]
        command += [",".join(map(str, descriptors)), str(self._idle_seconds or ""), *logs.chosen()]
        self._process = process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command,
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            env=resources.torch_environment(),
        )
        self._connections, self._loaded = queue.SimpleQueue(), set()
        for ours, theirs in pairs:
            theirs.close()
            self._connections.put(ours)
        return process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        idle: list[socket.socket] = []
        with contextlib.suppress(queue.Empty):
            while True:
                idle.append(self._connections.get_nowait())
        for connection in idle:
            connection.close()
            self._connections.put(connection)  # for calls that wait for one, and fail

    def _ended(self) -> EngineUnavailable:
        return EngineUnavailable(f"the {self.title} process has ended", retry_after_seconds=1)


class ProcessEngine(Engine):
    """Engine of a child process."""

    def __init__(self, process: EngineProcess, source: Source, timeout_seconds: float) -> None:
        """Wait until the process has loaded the engine."""
        self.name = source.engine
        self._process, self._source = process, source
        self._timeout_seconds = timeout_seconds
        for name, value in zip(TRAITS, self._ask("load"), strict=True):
            setattr(self, name, value)

    @property
    def alive(self) -> bool:
        """Whether the process runs, or would be started for the next batch."""
        return self._process.alive

    @property
    def pid(self) -> int | None:
        """Id of the process; None if there is none."""
        return self._process.pid

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        """Compute the tasks in the other process."""
        outputs: list[Output] = self._ask("compute", list(tasks))
        return outputs

    def _ask(self, method: str, *arguments: object, seconds: float = 0.0) -> Any:
        process, limit = self._process, max(seconds, self._timeout_seconds)
        answer = process.ask(self._source, method, *arguments, seconds=limit)
        if not isinstance(answer, Failure):
            return answer
        if method == "load":
            self.close()
            reason = answer.detail or answer.kind
            raise EngineUnavailable(f"{process.title} cannot load the model: {reason}")
        if answer.kind == DeviceLostError.__name__:
            process.close()
            raise EngineUnavailable(f"{process.title}: {answer.detail}", retry_after_seconds=1)
        if answer.kind == OUT_OF_MEMORY:
            raise out_of_memory(self.provider)
        raise EngineFailed(f"{process.title} failed: {answer.kind}")

    def close(self) -> None:
        """End the process."""
        self._process.close()


PATIENCE = 0.9
"""Share of a batch's time limit after which its device is lost, before the whole engine is."""


class DeviceEngine(ProcessEngine):
    """Engine on ONNX Runtime on one device, in a process of its own."""

    def __init__(self, artifact: Artifact, timeout_seconds: float, resources: Resources) -> None:
        """Load the graphs; raise `EngineUnavailable` if they or the device cannot be used."""
        source = Source(str(artifact.folder), "onnx", resources)
        process = EngineProcess(f"device {resources.device_id}", resources.threads)
        super().__init__(process, source, PATIENCE * timeout_seconds)

    def warm_up(self, batch_tokens: int, longest: int) -> None:
        """Run the runtime's own warm-up."""
        self._ask("warm_up", batch_tokens, longest, seconds=START_TIMEOUT_SECONDS)

    def release_memory(self) -> None:
        """Release the runtime's memory, while the device is alive."""
        self._ask("release_memory")


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

    def acquire(self) -> EngineProcess:
        """Return the process for another engine, which has to release it."""
        with self._lock:
            if self._host is None or not self._host.alive:
                self._host = EngineProcess("PyTorch", idle_seconds=self._idle_seconds)
            self._host.users += 1
            return self._host

    def release(self, host: EngineProcess) -> None:
        """Release the process of an engine; end it after its last engine."""
        with self._lock:
            host.users -= 1
            if host.users:
                return
            if host is self._host:  # before it ends, so that no other engine gets it
                self._host = None
        host.close()


class TorchEngine(ProcessEngine):
    """Engine that computes the artifact's float32 encoder in eager PyTorch."""

    def __init__(
        self, artifact: Artifact, timeout_seconds: float, hosts: TorchHosts | None = None
    ) -> None:
        """Start the process, unless models share one, and wait until it has loaded the encoder."""
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
