"""Runtime of foreign graphs (ONNX exports by other tools), on ONNX Runtime.

Inputs are padded and outputs packed again. The graph gives the last hidden state, and optionally
the attention weights of every layer.

Notation: B texts, T tokens of all of them, S tokens of the longest, H hidden size, L layers,
N heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from model.artifact.manifest import Artifact
from model.errors import ModelError
from model.numerics.batch import Batch, padded
from model.runtimes.capabilities import GraphMaps, HeadOutputs, lacking, lacking_state
from model.runtimes.contract import Floats
from model.runtimes.host import Calls, HostRuntime
from model.runtimes.sessions import Outputs, Session


class ForeignRuntime(HostRuntime):
    """Foreign graph on the CPU; see `Runtime`.

    A short batch uses all cores if no other call is in flight.
    """

    spare_calls = 1

    def __init__(self, artifact: Artifact, shared: Session, lone: Session) -> None:
        """Use one session for all batches, and one with all cores for single short batches."""
        self._manifest = artifact.manifest
        self.config = self._manifest.config
        self._shared, self._lone = shared, lone
        self.provider = shared.get_providers()[0]
        self._calls = Calls()

    def hidden_states(
        self, batch: Batch, layers: Sequence[int], head_mask: Floats | None = None
    ) -> list[Floats]:
        """Return `[T, H]` per layer, which is always the last.

        Raises:
            ModelError: another layer or an ablated head is requested.

        """
        missing = [lacking_state(self._manifest, layer) for layer in layers]
        if head_mask is not None:
            missing.append(lacking(self._manifest, HeadOutputs))
        for message in filter(None, missing):
            raise ModelError(message)
        if not self.config.reads_segments:
            batch = replace(batch, token_type_ids=np.zeros_like(batch.token_type_ids))
        (states,) = self._run(batch, [self._manifest.signature["encoder"].outputs[0].name])
        flat = states.reshape(-1, states.shape[-1])
        packed: Floats = flat[batch.packed_index].astype(np.float32, copy=False)
        return [packed] * len(layers)

    def _run(self, batch: Batch, outputs: Sequence[str]) -> Outputs:
        """Return padded outputs, in the graph's own types."""
        inputs = self._manifest.signature["encoder"].inputs
        grids = padded(batch, self.config.pad_token_id)
        feed = {spec.name: grids[spec.name].astype(spec.dtype) for spec in inputs}
        with self._calls.call(batch) as alone:
            return (self._lone if alone else self._shared).run(outputs, feed)


class ForeignMapsRuntime(ForeignRuntime, GraphMaps):
    """Foreign graph that outputs attention weights."""

    def maps(self, batch: Batch) -> Floats:
        """Return the maps `[L, N, S, S]` of one text."""
        names = [spec.name for spec in self._manifest.signature["encoder"].outputs[1:]]
        maps: Floats = np.concatenate(self._run(batch, names)).astype(np.float32, copy=False)
        return maps


def load_foreign(artifact: Artifact, shared: Session, lone: Session) -> ForeignRuntime:
    """Return the runtime of a foreign graph, with maps if the graph outputs them."""
    kind = ForeignMapsRuntime if artifact.manifest.gives_maps else ForeignRuntime
    return kind(artifact, shared, lone)
