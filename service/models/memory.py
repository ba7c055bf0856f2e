"""Memory budget of the loaded models, and which of them make room for another.

A model counts with its predicted bytes until it is loaded, and then with the bytes that the process
has grown by, which the next load of the same artifact takes as its prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from model.artifact.manifest import Artifact
from service.errors import InsufficientMemory
from service.models.served import ServedModel
from service.settings import Settings
from service.settings.served import OPTIONS

STATUS = Path("/proc/self/status")
MEBIBYTE = 2**20


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 where Linux does not report it."""
    try:
        lines = STATUS.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)


class MemoryBudget:
    """Bytes that the loaded models may take together."""

    def __init__(self, predict: Callable[[Artifact, Settings], int]) -> None:
        """Set the budget.

        Args:
            predict: function that estimates the bytes of a model that was never loaded, from its
                artifact and its settings.

        """
        self._predict = predict
        self._measured: dict[tuple[object, ...], int] = {}
        """Bytes of a loaded model by the SHA-256 of its artifact and its settings."""

    def of(self, artifact: Artifact, settings: Settings) -> int:
        """Return the bytes of a model: measured, or predicted if it was never loaded."""
        known = self._measured.get(_key(artifact, settings))
        return known or self._predict(artifact, settings)

    def measured(self, artifact: Artifact, settings: Settings, size: int) -> None:
        """Record the bytes by which the process has grown with a model.

        Pages that an earlier model left behind make a model look small, so a size below half of the
        prediction counts as half of it.
        """
        least = self._predict(artifact, settings) // 2
        self._measured[_key(artifact, settings)] = max(size, least)

    def to_evict(
        self,
        artifact: Artifact,
        settings: Settings,
        loaded: Iterable[ServedModel],
        evictable: Sequence[ServedModel],
    ) -> list[ServedModel]:
        """Return the models to unload so that another fits, the least recently used first.

        Args:
            artifact: artifact of the model to load.
            settings: settings of that model, with the budget.
            loaded: all models in memory.
            evictable: those of them that may be unloaded now.

        """
        limit = settings.memory_budget
        if limit is None:
            return []
        needed = self.of(artifact, settings)
        sizes = {id(m): self.of(m.artifact, m.settings) for m in loaded}
        names = {id(model): str(model) for model in loaded}
        free, evicted = limit - sum(sizes.values()), []
        for model in sorted(evictable, key=lambda model: model.uses.last_began):
            if needed <= free:
                break
            free += sizes.pop(id(model))
            evicted.append(model)
        if needed > free:
            held = ", ".join(f"{names[key]} {_mebibytes(size)}" for key, size in sizes.items())
            needs = f"the model needs about {_mebibytes(needed)}"
            raise InsufficientMemory(
                f"{needs}, and {_mebibytes(max(free, 0))} of --memory-budget "
                f"{_mebibytes(limit)} are free (in use or pinned: {held or 'none'}): unload a "
                "model, or raise the budget",
                f"{needs}, and the models in use leave too little of the {_mebibytes(limit)} "
                "for all models: try again later, or ask for another model",
            )
        return evicted


def _key(artifact: Artifact, settings: Settings) -> tuple[object, ...]:
    return artifact.sha256, *(getattr(settings, name) for name in OPTIONS)


def _mebibytes(size: int) -> str:
    return f"{round(size / MEBIBYTE)} MiB"
