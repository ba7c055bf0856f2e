"""The process behind `TorchEngine`: `python -m service.engines.torch_worker FOLDER FD`."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from model.artifact import WEIGHTS, load_artifact
from model.checkpoint import load_weights
from model.encoder import Encoder
from model.packing import PackedBatch
from service.collate import collate, needed_layers, uncollate
from service.engines.base import Output, Task

_log = logging.getLogger("headscope")


def run(encoder: Encoder, tasks: Sequence[Task]) -> list[Output]:
    """One packed forward pass, and everything the tasks ask of it."""
    batch = collate(tasks)
    with torch.inference_mode():
        result = encoder(
            PackedBatch.of(batch),
            output_attentions=any(task.attention_layers for task in tasks),
        )
    hidden = {layer: result.hidden_states[layer].numpy() for layer in needed_layers(tasks)}
    outputs = uncollate(tasks, hidden)
    for row, (task, output) in enumerate(zip(tasks, outputs, strict=True)):
        if task.attention_layers:
            heads, s = list(task.attention_heads), task.tokens
            maps = [result.attentions[n][row, heads, :s, :s] for n in task.attention_layers]
            output.attention = torch.stack(maps).numpy()
    return outputs


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
            answer = type(error).__name__
        connection.send(answer)


def main() -> None:
    """Load the encoder and serve it; an interrupt is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    folder, descriptor = sys.argv[1:]
    artifact = load_artifact(Path(folder))
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    encoder = load_weights(artifact.path(WEIGHTS), artifact.manifest.config)
    with Connection(int(descriptor)) as connection:
        serve(encoder, connection)


if __name__ == "__main__":
    main()
