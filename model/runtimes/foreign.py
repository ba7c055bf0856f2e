"""A foreign graph: somebody else's ONNX export of an encoder, on ONNX Runtime.

What is given to it is padded, what it gives is packed again; it has the last hidden state alone.

Notation: B texts, T tokens of all of them, S tokens of the longest, H hidden size, L layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from model.artifact.batch import PADDING, Batch
from model.artifact.foreign import not_in_graph
from model.artifact.manifest import Artifact
from model.artifact.signature import TensorSpec
from model.errors import ModelError
from model.runtimes.contract import Floats
from model.runtimes.host import Calls, HostRuntime

Grid = NDArray[np.int64]


class Session(Protocol):
    """A loaded graph, as ONNX Runtime has it."""

    def run(self, names: Sequence[str], feed: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """The outputs of these names."""

    def get_providers(self) -> list[str]:
        """The hardware interfaces that compute."""


class ForeignRuntime(HostRuntime):
    """Somebody else's graph on the CPU; see `Runtime`.

    A short text that comes while no other is computed has every core to itself.
    """

    spare_calls = 1

    def __init__(self, artifact: Artifact, shared: Session, lone: Session) -> None:
        """Serve by a session that all batches share, and one with all cores for a short one."""
        manifest = artifact.manifest
        self.config = manifest.config
        self._inputs = manifest.signature["encoder"].inputs
        self._output = manifest.signature["encoder"].outputs[0].name
        self._shared, self._lone = shared, lone
        self.provider = shared.get_providers()[0]
        self._calls = Calls()

    def hidden_states(
        self, batch: Batch, layers: Sequence[int], head_mask: Floats | None = None
    ) -> list[Floats]:
        """`[T, H]` a layer, which is always the last.

        Raises:
            ModelError: another layer, or an ablated head, is asked for.

        """
        last = self.config.num_hidden_layers
        if any(layer != last for layer in layers):
            raise ModelError(not_in_graph("another hidden state"))
        if head_mask is not None:
            raise ModelError(not_in_graph("what a head adds"))
        feed = padded(batch, self._inputs, self.config.pad_token_id)
        with self._calls.call(batch) as alone:
            (states,) = (self._lone if alone else self._shared).run([self._output], feed)
        flat = states.reshape(-1, states.shape[-1])
        packed: Floats = flat[batch.packed_index].astype(np.float32, copy=False)
        return [packed] * len(layers)

    def attention(self, *_: Any, **__: Any) -> Floats:
        """There is none.

        Raises:
            ModelError: always.

        """
        raise ModelError(not_in_graph("attention weights"))


def padded(batch: Batch, inputs: Sequence[TensorSpec], pad_token_id: int) -> dict[str, Grid]:
    """A packed batch as the inputs of a graph, `[B, S]` each, padded at the end.

    Positions run on over the padding, whose own count for nothing.
    """
    real = batch.padded_index != PADDING
    shape = real.shape

    def grid(values: Grid, filler: int) -> Grid:
        found = np.full(shape, filler, np.int64)
        found[real] = values
        return found

    grids = {
        "input_ids": grid(batch.input_ids, pad_token_id),
        "attention_mask": (batch.padded_index >= 0).astype(np.int64),
        "token_type_ids": grid(batch.token_type_ids, 0),
        "position_ids": np.broadcast_to(np.arange(shape[1]), shape),
    }
    return {spec.name: grids[spec.name].astype(spec.dtype) for spec in inputs}
