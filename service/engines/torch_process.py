"""The process behind `TorchEngine`: `python -P -m service.engines.torch_process`, see `main`."""

from __future__ import annotations

import logging
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from model.artifact.manifest import load_artifact
from model.runtimes.registry import load_runtime
from service.engines.contract import Output, Task
from service.engines.memory import OUT_OF_MEMORY, ran_out_of_memory
from service.engines.runtime import RuntimeEngine
from service.system import logs, resources

_log = logging.getLogger("headscope")


def serve(engine: RuntimeEngine, connection: Connection) -> None:
    """Answer until the other side is gone; a failed batch is answered with its error's name."""
    connection.send([])
    while True:
        try:
            tasks: list[Task] = connection.recv()
        except EOFError:
            return
        try:
            answer: list[Output] | str = engine.compute(tasks)
        except Exception as error:
            _log.exception("a batch failed")
            answer = OUT_OF_MEMORY if ran_out_of_memory(error) else type(error).__name__
        connection.send(answer)


def main() -> None:
    """Load the encoder and serve it; what a terminal sends is the parent's to handle.

    Arguments are the artifact's folder, the connection's descriptor, threads, and how to log.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    resources.settle_allocator()
    folder, descriptor, threads, log_level, log_format = sys.argv[1:]
    logs.configure(log_level, log_format)
    artifact = load_artifact(Path(folder))
    torch.set_num_threads(int(threads))
    engine = RuntimeEngine("torch", load_runtime(artifact, name="pytorch"), concurrency=1)
    with Connection(int(descriptor)) as connection:
        serve(engine, connection)


if __name__ == "__main__":
    main()
