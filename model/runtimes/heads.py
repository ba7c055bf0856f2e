"""Parameters of all heads, inputs of the graphs that hold none of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from model.artifact.access import reading
from model.artifact.manifest import DECODER_HEADS, GRAPHS, HEADS, Artifact
from model.artifact.mapped import mapped_tensors
from model.artifact.signature import (
    ATTENTION_OF,
    STATES,
    VALUES_OF,
    GraphName,
    MapKind,
    head_parameter_name,
)
from model.numerics.low_rank import of_segment
from model.runtimes.capabilities import HeadOutputs
from model.runtimes.contract import Floats
from model.runtimes.sessions import LoadGraph, Session

FLOATS = 2**21
"""Maximum number of features of the heads' added vectors in memory at one time: 8 MiB."""


class GraphValues(HeadOutputs):
    """Value products of heads of a kind; calls are thread-safe."""

    def __init__(self, artifact: Artifact, load: LoadGraph, kind: MapKind = "encoder") -> None:
        """Keep the arguments; nothing is loaded yet. See `HostGraph`."""
        self._graph = HostGraph(artifact, VALUES_OF[kind], load, kind)

    def value_products(
        self, states: Floats, layer: int, heads: Sequence[int], segment: int = 0
    ) -> Floats:
        """Return products `[S, n, n]` for key states `[S, H]`."""
        outputs = self._graph.of_heads(layer, heads, segment)
        return in_parts(states, len(heads), lambda rows: outputs(rows)[0])


def in_parts(states: Floats, heads: int, of_some: Callable[[Floats], Floats]) -> Floats:
    """Compute results in blocks of tokens, so that the heads' added vectors stay within `FLOATS`.

    `states` are `[S, H]`; `of_some` maps some of their rows to as many rows of the result.
    """
    step = max(1, FLOATS // (heads * states.shape[1]))
    firsts = range(0, max(1, len(states)), step)
    parts = [of_some(states[first : first + step]) for first in firsts]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def read_heads(artifact: Artifact, kind: MapKind = "encoder") -> list[dict[str, Floats]]:
    """Map the parameters of all heads of each layer by name, in the attention graph's order."""
    manifest = artifact.manifest
    inputs = manifest.signature[ATTENTION_OF[kind]].inputs[len(STATES) :]
    config = manifest.decoder.layers if kind != "encoder" and manifest.decoder else manifest.config
    with reading(path := heads_path(artifact, kind)):
        tensors = mapped_tensors(path)
        return [
            {spec.name: tensors[head_parameter_name(spec.name, layer, kind)] for spec in inputs}
            for layer in range(config.num_hidden_layers)
        ]


def heads_path(artifact: Artifact, kind: MapKind) -> Path:
    """Return the file with all parameters of heads of a kind."""
    return artifact.path(HEADS if kind == "encoder" else DECODER_HEADS)


class HeadParameters:
    """Parameters of all heads, as inputs of the attention graph."""

    def __init__(self, artifact: Artifact, kind: MapKind = "encoder") -> None:
        self._layers, self._config = read_heads(artifact, kind), artifact.manifest.config
        self._tensors = mapped_tensors(heads_path(artifact, kind))

    def feed(self, layer: int, heads: Sequence[int], segment: int = 0) -> dict[str, Floats]:
        """Return the graph's inputs for some heads of a layer, by name; axis 0 is heads."""
        own = self._layers[layer]
        if segment:
            tensors = of_segment(self._tensors, segment, self._config)
            own = {name: tensors[head_parameter_name(name, layer)] for name in own}
        return chosen_heads(own, heads)


def chosen_heads(parameters: Mapping[str, Floats], heads: Sequence[int]) -> dict[str, Floats]:
    """Return contiguous parameters `[N, …]` of chosen heads by name; all heads are not copied."""
    chosen = list(heads)
    return {
        name: np.ascontiguousarray(tensor if chosen == list(range(len(tensor))) else tensor[chosen])
        for name, tensor in parameters.items()
    }


class HostGraph:
    """Graph over states and heads' parameters, on the host and in float32.

    Its session is created and the parameters are mapped at the first call: a service without such
    requests uses no memory for them. Calls are thread-safe.
    """

    def __init__(
        self, artifact: Artifact, graph: GraphName, load: LoadGraph, kind: MapKind = "encoder"
    ) -> None:
        """Keep the arguments; nothing is loaded yet.

        The graph's first input is states, the others are heads' parameters.
        """
        self._artifact, self._graph, self._load, self._kind = artifact, graph, load, kind
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._parameters: dict[str, Floats] = {}

    def of_heads(
        self, layer: int, heads: Sequence[int], segment: int = 0
    ) -> Callable[[Floats], list[Floats]]:
        """Return the function from states `[S, H]` to all outputs for these heads."""
        session, kind = self._loaded(), self._kind
        signature = self._artifact.manifest.signature[self._graph]
        states, *specs = signature.inputs
        parameters = of_segment(self._parameters, segment, self._artifact.manifest.config)
        stored = {
            spec.name: parameters[head_parameter_name(spec.name, layer, kind)] for spec in specs
        }
        chosen, outputs = chosen_heads(stored, heads), [spec.name for spec in signature.outputs]
        return lambda rows: session.run(outputs, {states.name: rows, **chosen})

    def _loaded(self) -> Session:
        with self._lock:
            if self._session is None:
                with reading(path := heads_path(self._artifact, self._kind)):
                    self._parameters = mapped_tensors(path)
                self._session = self._load(self._artifact.path(GRAPHS[self._graph]))
            return self._session
