"""The engine over an artifact's ONNX graphs: one runtime, called from several threads."""

from __future__ import annotations

import os
from collections.abc import Sequence

from model.artifact.manifest import Artifact
from model.artifact.pooling import TextPooling
from model.errors import DeviceLostError
from model.runtimes.contract import Device, load_runtime
from service.engines.collate import collate, head_mask, run_both
from service.engines.contract import Engine, Floats, MapsTask, Output, Task, TextTask
from service.engines.memory import out_of_memory, ran_out_of_memory
from service.errors import EngineFailed, EngineUnavailable

CUDA = "CUDAExecutionProvider"
CUDA_CALLS = 2
"""One is computed while the next is prepared, or the last is copied."""
CUDA_BATCH_TOKENS = 16384


class OnnxEngine(Engine):
    """The graphs on the runtime that the manifest names; on a CPU, one thread a call."""

    name = "onnx"

    def __init__(
        self,
        artifact: Artifact,
        device: Device = "auto",
        threads: int | None = None,
        device_id: int = 0,
        device_memory_bytes: int | None = None,
    ) -> None:
        """Load the graphs.

        Args:
            artifact: a checked artifact.
            device: where to run; "auto" takes CUDA where there is a device.
            threads: calls at once; when None the number of usable cores, or `CUDA_CALLS`.
            device_id: which of several CUDA devices.
            device_memory_bytes: the most that each graph may take on a CUDA device.

        Raises:
            ModelError: the graphs cannot be loaded, or the device is not there.

        """
        cores = threads or len(os.sched_getaffinity(0))
        self._runtime = load_runtime(artifact, device, cores, device_id, device_memory_bytes)
        self.provider = self._runtime.provider
        self.concurrency = cores
        self.hidden_size = artifact.manifest.config.hidden_size
        if self.provider == CUDA:
            self.concurrency = threads or CUDA_CALLS
            self.batch_tokens = CUDA_BATCH_TOKENS

    @property
    def alive(self) -> bool:
        """False once the device is lost."""
        return self._runtime.alive

    def warm_up(self, batch_tokens: int, longest: int) -> None:
        """Have the runtime do once what is slow the first time."""
        self._runtime.warm_up(batch_tokens, longest)

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        """One packed forward pass for all texts; the maps of a layer in a call each."""
        try:
            return run_both(tasks, self._encode, self._attend)
        except DeviceLostError as error:
            raise EngineUnavailable(str(error), retry_after_seconds=5) from error
        except Exception as error:  # the runtimes' own exceptions share no base class
            if ran_out_of_memory(error):
                raise out_of_memory(self.provider) from error
            raise EngineFailed(f"{self.provider} failed: {type(error).__name__}") from error

    def _encode(self, tasks: Sequence[TextTask]) -> list[Output]:
        """Nothing but what the tasks ask for leaves the device."""
        states, vectors = self._runtime.encode(
            collate(tasks),
            [(text, layer) for text, task in enumerate(tasks) for layer in task.hidden_layers],
            [
                TextPooling(text, task.pooling.layer, task.pooling.mode, task.pooling.first_token)
                for text, task in enumerate(tasks)
                if task.pooling
            ],
            head_mask(tasks, self._runtime.config),
        )
        hidden, pooled = iter(states), iter(vectors)
        return [
            Output(
                [next(hidden) for _ in task.hidden_layers], next(pooled) if task.pooling else None
            )
            for task in tasks
        ]

    def _attend(self, task: MapsTask) -> Floats:
        return self._runtime.attention(task.queries, task.keys, task.layer, task.heads)
