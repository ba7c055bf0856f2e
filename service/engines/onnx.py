"""The ONNX Runtime engine: one session, called from several threads."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from model.artifact import Artifact
from model.runtime import Device, OnnxEncoder
from service.collate import collate, needed_layers, uncollate
from service.engines.base import Engine, Floats, Output, Task
from service.errors import EngineFailed


class OnnxEngine(Engine):
    """An artifact's graphs. On a CPU each call runs on its caller's thread alone."""

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
        self._encoder = OnnxEncoder(artifact, device)
        self._pad_token_id = artifact.manifest.config.pad_token_id
        self.provider = self._encoder.provider
        self.concurrency = threads or len(os.sched_getaffinity(0))

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        """One padded forward pass; then each asked map, recomputed from its layer's input."""
        layers = needed_layers(tasks)
        batch = collate(tasks, self._pad_token_id)
        try:
            hidden = dict(zip(layers, self._encoder.hidden_states(batch, layers), strict=True))
            outputs = uncollate(tasks, hidden)
            for row, (task, output) in enumerate(zip(tasks, outputs, strict=True)):
                if task.attention_layers:
                    output.attention = self._attention(task, row, hidden)
        except Exception as error:  # onnxruntime's own exceptions share no base class
            raise EngineFailed(f"ONNX Runtime failed: {type(error).__name__}") from error
        return outputs

    def _attention(self, task: Task, row: int, hidden: dict[int, Floats]) -> Floats:
        s = task.tokens
        shape = (len(task.attention_layers), len(task.attention_heads), s, s)
        maps = np.empty(shape, np.float32)
        for index, layer in enumerate(task.attention_layers):
            state = hidden[layer][row : row + 1, :s]
            maps[index] = self._encoder.attention(state, layer, task.attention_heads)[0]
        return maps
