"""The process behind `TorchEngine`: `python -m service.engines.torch_process`, see `main`."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from model.artifact.manifest import WEIGHTS, load_artifact
from model.attention_weights import attention_weights
from model.checkpoint import load_weights
from model.encoder import Encoder
from model.packing import PackedBatch
from service import logs, system
from service.engines.collate import collate, head_mask, needed_layers, run_both, uncollate
from service.engines.contract import Floats, MapsTask, Output, Task, TextTask
from service.engines.memory import OUT_OF_MEMORY, ran_out_of_memory

_log = logging.getLogger("headscope")


def run(encoder: Encoder, tasks: Sequence[Task]) -> list[Output]:
    """One packed forward pass for all texts; the maps of a layer in a call each."""
    with torch.inference_mode():
        return run_both(tasks, partial(_encode, encoder), partial(_attend, encoder))


def _encode(encoder: Encoder, tasks: Sequence[TextTask]) -> list[Output]:
    mask = head_mask(tasks, encoder.config)
    result = encoder(
        PackedBatch.of(collate(tasks)), None if mask is None else torch.from_numpy(mask)
    )
    hidden = {layer: result.hidden_states[layer].numpy() for layer in needed_layers(tasks)}
    return uncollate(tasks, hidden)


def _attend(encoder: Encoder, task: MapsTask) -> Floats:
    queries, keys = (torch.from_numpy(states)[None] for states in (task.queries, task.keys))
    heads = encoder.attention(task.layer).some_heads(task.heads)
    maps: Floats = attention_weights(heads, queries, keys)[0].numpy()
    return maps


def serve(encoder: Encoder, connection: Connection) -> None:
    """Answer until the other side is gone; a failed batch is answered with its error's name."""
    connection.send([])
    while True:
        try:
            tasks: list[Task] = connection.recv()
        except EOFError:
            return
        try:
            answer: list[Output] | str = run(encoder, tasks)
        except Exception as error:
            _log.exception("a batch failed")
            answer = OUT_OF_MEMORY if ran_out_of_memory(error) else type(error).__name__
        connection.send(answer)


def main() -> None:
    """Load the encoder and serve it; an interrupt is the parent's to handle.

    Arguments are the artifact's folder, the connection's descriptor, threads, and how to log.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    system.settle_allocator()
    folder, descriptor, threads, log_level, log_format = sys.argv[1:]
    logs.configure(log_level, log_format)
    artifact = load_artifact(Path(folder))
    torch.set_num_threads(int(threads))
    encoder = load_weights(artifact.path(WEIGHTS), artifact.manifest.config)
    with Connection(int(descriptor)) as connection:
        serve(encoder, connection)


if __name__ == "__main__":
    main()
