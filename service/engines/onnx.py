"""The engine over an artifact's ONNX graphs: one runtime, called from several threads."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from model.artifact import Artifact
from model.runtime import Device, load_runtime
from service.collate import collate, needed_layers, token_rows, uncollate
from service.engines.base import Engine, Floats, Output, Task
from service.errors import EngineFailed


class OnnxEngine(Engine):
    """The graphs on the runtime that the manifest names; on a CPU, one thread a call."""

    name = "onnx"

    def __init__(
        self, artifact: Artifact, device: Device = "auto", threads: int | None = None
    ) -> None:
        """Load the graphs.

        Args:
            artifact: a checked artifact.
            device: where to run; "auto" takes CUDA where there is a device.
            threads: calls at once; the number of usable cores when None.

        Raises:
            ModelError: the graphs cannot be loaded, or the device is not there.

        """
        self.concurrency = threads or len(os.sched_getaffinity(0))
        self._runtime = load_runtime(artifact, device, self.concurrency)
        self.provider = self._runtime.provider

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        """One packed forward pass; then each asked map, recomputed from its layer's input."""
        layers = needed_layers(tasks)
        try:
            states = self._runtime.hidden_states(collate(tasks), layers)
            hidden = dict(zip(layers, states, strict=True))
            outputs = uncollate(tasks, hidden)
            for rows, task, output in zip(token_rows(tasks), tasks, outputs, strict=True):
                if task.attention_layers:
                    output.attention = self._attention(task, rows, hidden)
        except Exception as error:  # the runtimes' own exceptions share no base class
            raise EngineFailed(f"{self.provider} failed: {type(error).__name__}") from error
        return outputs

    def _attention(self, task: Task, rows: slice, hidden: dict[int, Floats]) -> Floats:
        s = task.tokens
        shape = (len(task.attention_layers), len(task.attention_heads), s, s)
        maps = np.empty(shape, np.float32)
        for index, layer in enumerate(task.attention_layers):
            maps[index] = self._runtime.attention(hidden[layer][rows], layer, task.attention_heads)
        return maps
