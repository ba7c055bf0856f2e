"""Process of `TorchEngine`: `python -P -m service.engines.torch_process`, see `main`."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from model.artifact.manifest import load_artifact
from model.runtimes.registry import load_runtime
from service.engines.contract import Output, Task
from service.engines.runtime import OUT_OF_MEMORY, RuntimeEngine, ran_out_of_memory
from service.system import logs, resources

_log = logging.getLogger("headscope")


def serve(load: Callable[[str], RuntimeEngine], connection: Connection) -> None:
    """Answer messages until the connection closes; answer a failure with the exception's name.

    A message is (folder, tasks); without tasks, the engine is only loaded.
    """
    engines: dict[str, RuntimeEngine] = {}
    while True:
        try:
            message: tuple[str, list[Task]] = connection.recv()
        except EOFError:
            return
        folder, tasks = message
        answer: list[Output] | str
        try:
            if folder not in engines:
                engines[folder] = load(folder)
            answer = engines[folder].compute(tasks) if tasks else []
        except Exception as error:
            _log.exception("a batch failed" if tasks else "a model was not loaded")
            answer = OUT_OF_MEMORY if ran_out_of_memory(error) else type(error).__name__
        connection.send(answer)


def load_engine(folder: str) -> RuntimeEngine:
    """Load the encoder of an artifact."""
    runtime = load_runtime(load_artifact(Path(folder)), name="pytorch")
    return RuntimeEngine("torch", runtime, concurrency=1)


def main() -> None:
    """Load encoders and serve them; ignore a terminal's signals, which the parent handles.

    Arguments: the connection's file descriptor, number of threads, log level and log format.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    resources.settle_allocator()
    descriptor, threads, log_level, log_format = sys.argv[1:]
    logs.configure(log_level, log_format)
    torch.set_num_threads(int(threads))
    with Connection(int(descriptor)) as connection:
        serve(load_engine, connection)


if __name__ == "__main__":
    main()
