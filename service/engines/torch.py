"""PyTorch engine, which runs in its own process: the service never imports torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from model.artifact.manifest import Artifact
from model.runtimes.capabilities import lacking_weights
from service.engines.contract import Engine, Output, Task
from service.engines.memory import OUT_OF_MEMORY, out_of_memory
from service.engines.torch_host import TorchHosts
from service.errors import EngineFailed, EngineNotInstalled, EngineUnavailable


class TorchEngine(Engine):
    """Engine that computes the artifact's float32 encoder in eager PyTorch."""

    name = "torch"
    provider = "torch-cpu"
    concurrency = 1

    def __init__(
        self, artifact: Artifact, timeout_seconds: float, hosts: TorchHosts | None = None
    ) -> None:
        """Start the process, and wait until it has loaded the encoder.

        Args:
            artifact: a checked artifact.
            timeout_seconds: maximum time of a batch.
            hosts: the process that models share; a new one if None.

        Raises:
            EngineNotInstalled: torch is not installed, or the artifact has no weights for it.
            EngineUnavailable: the process ended, or did not load in time.

        """
        check_installed(artifact)
        self.hidden_size = artifact.manifest.config.hidden_size
        self._folder = artifact.folder
        self._timeout_seconds = timeout_seconds
        self._hosts = hosts or TorchHosts()
        self._host = self._hosts.acquire()
        self._closed = False
        answer = self._host.run(self._folder, [], timeout_seconds)
        if isinstance(answer, str):
            self.close()
            raise EngineUnavailable(f"PyTorch cannot load the model: {answer}")

    @property
    def alive(self) -> bool:
        """Whether the process runs, or would be started for the next batch."""
        return not self._closed and self._host.alive

    @property
    def pid(self) -> int | None:
        """Id of the process; None if there is none."""
        return self._host.pid

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        """Compute the tasks in the other process, the texts in one packed forward pass."""
        answer = self._host.run(self._folder, tasks, self._timeout_seconds)
        if answer == OUT_OF_MEMORY:
            raise out_of_memory(self.provider)
        if isinstance(answer, str):
            raise EngineFailed(f"PyTorch failed: {answer}")
        return answer

    def close(self) -> None:
        """Release the process, which ends with its last engine."""
        if not self._closed:
            self._closed = True
            self._hosts.release(self._host)


def check_installed(artifact: Artifact) -> None:
    """Raise if PyTorch cannot compute an artifact here.

    Raises:
        EngineNotInstalled: torch is not installed, or the artifact has no weights for it.

    """
    if message := lacking_weights(artifact.manifest):
        raise EngineNotInstalled(message)
    if importlib.util.find_spec("torch") is None:
        raise EngineNotInstalled("PyTorch is not installed here")
