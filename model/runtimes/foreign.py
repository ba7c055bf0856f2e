"""Runtime of foreign graphs (ONNX exports by other tools), on ONNX Runtime.

Inputs are padded and outputs packed again. The graph gives the last hidden state, and optionally
the attention weights of every layer.

Notation: B texts, T tokens of all of them, S tokens of the longest, H hidden size, L layers,
N heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from model.artifact.foreign import not_in_graph
from model.artifact.manifest import Artifact
from model.artifact.signature import MapKind, TensorSpec
from model.errors import ModelError
from model.numerics.batch import Batch
from model.runtimes.contract import Floats
from model.runtimes.host import Calls, HostRuntime

Grid = NDArray[np.int64]


class Session(Protocol):
    """Loaded graph, as ONNX Runtime's session."""

    def run(self, names: Sequence[str], feed: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the outputs with these names."""

    def get_providers(self) -> list[str]:
        """Return the hardware interfaces that compute."""


class ForeignRuntime(HostRuntime):
    """Foreign graph on the CPU; see `Runtime`.

    A short batch uses all cores if no other call is in flight.
    """

    spare_calls = 1

    def __init__(self, artifact: Artifact, shared: Session, lone: Session) -> None:
        """Use one session for all batches, and one with all cores for single short batches."""
        manifest = artifact.manifest
        self.config = manifest.config
        self._inputs = manifest.signature["encoder"].inputs
        names = [spec.name for spec in manifest.signature["encoder"].outputs]
        self._output, self._attentions = names[0], names[1:]
        self.own_maps = bool(self._attentions)
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
        last = self.config.num_hidden_layers
        if any(layer != last for layer in layers):
            raise ModelError(not_in_graph("another hidden state", maps=self.own_maps))
        if head_mask is not None:
            raise ModelError(not_in_graph("what a head adds", maps=self.own_maps))
        if not self.config.reads_segments:
            batch = replace(batch, token_type_ids=np.zeros_like(batch.token_type_ids))
        feed = padded(batch, self._inputs, self.config.pad_token_id)
        with self._calls.call(batch) as alone:
            (states,) = (self._lone if alone else self._shared).run([self._output], feed)
        flat = states.reshape(-1, states.shape[-1])
        packed: Floats = flat[batch.packed_index].astype(np.float32, copy=False)
        return [packed] * len(layers)

    def attention(
        self,
        queries: Floats,
        keys: Floats,
        layer: int,
        heads: Sequence[int],
        kind: MapKind = "encoder",
    ) -> Floats:
        """Raise an error: maps of a foreign graph are not recomputed.

        Raises:
            ModelError: always.

        """
        del queries, keys, layer, heads, kind
        raise ModelError(not_in_graph("attention weights"))

    def maps(self, batch: Batch) -> Floats:
        """Return the maps `[L, N, S, S]` of one text.

        Raises:
            ModelError: the graph has no attention weights.

        """
        if not self.own_maps:
            raise ModelError(not_in_graph("attention weights"))
        feed = padded(batch, self._inputs, self.config.pad_token_id)
        with self._calls.call(batch) as alone:
            layers = (self._lone if alone else self._shared).run(self._attentions, feed)
        maps: Floats = np.concatenate(layers).astype(np.float32, copy=False)
        return maps


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
