"""Engine that computes an artifact's ONNX graphs."""

from __future__ import annotations

import os

from model.artifact.manifest import Artifact
from model.runtimes.contract import Device, Resources
from model.runtimes.registry import RUNTIMES, load_runtime
from service.engines.runtime import RuntimeEngine
from service.system.distribution import require

CUDA = "CUDAExecutionProvider"
CUDA_CALLS = 2
"""Concurrent calls: one computes while the other prepares its input or copies its output."""
CUDA_BATCH_TOKENS = 16384


class OnnxEngine(RuntimeEngine):
    """Engine on the runtime that the manifest names; on a CPU, each call uses one thread."""

    def __init__(
        self,
        artifact: Artifact,
        device: Device = "auto",
        threads: int | None = None,
        device_id: int = 0,
        device_memory_bytes: int | None = None,
        cuda_graphs: bool = False,
    ) -> None:
        """Load the graphs of a checked artifact; "auto" uses CUDA if there is a device.

        Without `threads`, there are as many calls as usable cores, or `CUDA_CALLS`. The limit of
        memory is of each graph. A runtime that is not installed is a ValueError.
        """
        libraries = RUNTIMES[artifact.manifest.runtime].libraries
        require(f"computing {artifact.folder}", *libraries)
        cores = threads or len(os.sched_getaffinity(0))
        resources = Resources(device, cores, device_id, device_memory_bytes, cuda_graphs)
        runtime = load_runtime(artifact, resources)
        super().__init__("onnx", runtime, cores)
        self.attention_kernels = runtime.attention_kernels
        if self.provider == CUDA:
            self.concurrency = threads or CUDA_CALLS
            self.batch_tokens = CUDA_BATCH_TOKENS
