"""Child process of engines: `python -P -m service.engines.child`, see `main`.

It imports the libraries of the engines that it loads, and no others.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import signal
import socket
import sys
import threading
from dataclasses import astuple
from pathlib import Path

from model.artifact.manifest import load_artifact
from model.errors import DeviceLostError, ProviderError
from model.runtimes.registry import load_runtime
from service.engines.onnx import OnnxEngine
from service.engines.process import TRAITS, Failure, Source, receive, send
from service.engines.runtime import OUT_OF_MEMORY, RuntimeEngine, ran_out_of_memory
from service.system import logs, resources

_log = logging.getLogger("headscope")


class Engines:
    """Engines of the process, each loaded by its first message."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: dict[Source, RuntimeEngine] = {}

    def serve(self, connection: socket.socket) -> None:
        """Answer messages; answer an exception with a `Failure`.

        A message is a source, a method of its engine, and arguments; "load" returns its `TRAITS`.

        Raises:
            EOFError, OSError: the other end has closed the connection, or sends no message.

        """
        while True:
            source, method, arguments = receive(connection)
            answer: object
            try:
                engine = self._engine(source)
                if method == "load":
                    answer = [getattr(engine, name) for name in TRAITS]
                else:
                    answer = getattr(engine, method)(*arguments)
            except Exception as error:
                _log.exception("a model was not loaded" if method == "load" else "a batch failed")
                answer = _failure(error)
            send(connection, answer)

    def _engine(self, source: Source) -> RuntimeEngine:
        with self._lock:
            if source not in self._loaded:
                self._loaded[source] = _load(source)
            return self._loaded[source]


def _load(source: Source) -> RuntimeEngine:
    artifact = load_artifact(Path(source.folder))
    if source.engine == "torch":
        importlib.import_module("torch").set_num_threads(source.resources.threads)
        return RuntimeEngine("torch", load_runtime(artifact, name="pytorch"), concurrency=1)
    return OnnxEngine(artifact, *astuple(source.resources))


def _failure(error: Exception) -> Failure:
    kind = OUT_OF_MEMORY if ran_out_of_memory(error) else type(error).__name__
    of_device = isinstance(error, DeviceLostError | ProviderError)
    return Failure(kind, str(error) if of_device else "")


def main() -> None:
    """Load engines and serve them; ignore a terminal's signals, which the parent handles.

    Arguments: the connections' file descriptors, separated by commas; seconds without a message
    after which the process ends, or nothing; log level and log format.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    resources.settle_allocator()
    descriptors, idle_seconds, log_level, log_format = sys.argv[1:]
    logs.configure(log_level, log_format)
    engines = Engines()

    def serve(descriptor: int) -> None:
        with (
            socket.socket(fileno=descriptor) as connection,
            contextlib.suppress(EOFError, OSError),
        ):
            connection.settimeout(float(idle_seconds) if idle_seconds else None)
            try:
                engines.serve(connection)
            except TimeoutError:
                _log.info("PyTorch had no batch for %s s: its process ends", idle_seconds)

    threads = [threading.Thread(target=serve, args=[int(n)]) for n in descriptors.split(",")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
