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
from numpy.typing import NDArray

from model.artifact.manifest import Artifact
from model.artifact.signature import TensorSpec
from model.errors import ModelError
from model.numerics.batch import Batch
from model.runtimes.capabilities import GraphMaps, HeadOutputs, lacking, lacking_state
from model.runtimes.contract import Floats
from model.runtimes.host import Calls, HostRuntime
from model.runtimes.sessions import Outputs, Session

Grid = NDArray[np.int64]


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
        feed = padded(batch, inputs, self.config.pad_token_id)
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


def padded(batch: Batch, inputs: Sequence[TensorSpec], pad_token_id: int) -> dict[str, Grid]:
    """Return a packed batch as the inputs of a graph, `[B, S]` each, padded at the end.

    Positions continue over the padding, where they have no effect.
    """
    shape = batch.padded_index.shape

    def grid(values: Grid, filler: int) -> Grid:
        values_grid = np.full(shape, filler, np.int64)
        values_grid.flat[batch.packed_index] = values
        return values_grid

    grids = {
        "input_ids": grid(batch.input_ids, pad_token_id),
        "attention_mask": (batch.padded_index >= 0).astype(np.int64),
        "token_type_ids": grid(batch.token_type_ids, 0),
        "position_ids": np.broadcast_to(np.arange(shape[1]), shape),
    }
    return {spec.name: grids[spec.name].astype(spec.dtype) for spec in inputs}
