"""Runtime of static embeddings: rows of a memory-mapped table, looked up by numpy."""

from __future__ import annotations

from collections.abc import Sequence

from model.artifact.manifest import TABLE, Artifact
from model.artifact.mapped import mapped_tensors
from model.errors import ModelError
from model.numerics.batch import Batch
from model.runtimes.contract import Floats, HostRuntime, Resources

ROWS = "embeddings"
"""Name of the table `[V, H]` in its file."""


class StaticRuntime(HostRuntime):
    """Table of one vector a token, which has no layers; see `Runtime`."""

    provider = "numpy-cpu"

    def __init__(self, artifact: Artifact) -> None:
        self.config = artifact.manifest.config
        self._table = mapped_tensors(artifact.path(TABLE))[ROWS]

    def hidden_states(
        self, batch: Batch, layers: Sequence[int], head_mask: Floats | None = None
    ) -> list[Floats]:
        """Return the tokens' rows `[T, H]` as hidden state 0, the only one."""
        if any(layers) or head_mask is not None:
            raise ModelError("a static embedding has no layers and heads")
        return [self._table[batch.input_ids]] * len(layers)


def load(artifact: Artifact, _: Resources) -> StaticRuntime:
    """Map the table into memory."""
    return StaticRuntime(artifact)
