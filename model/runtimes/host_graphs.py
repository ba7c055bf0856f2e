"""Computations of a runtime on the host in float32, whatever computes its encoder."""

from __future__ import annotations

from collections.abc import Sequence

from model.artifact.decomposition import DecomposedRows, DecompositionStep
from model.artifact.foreign import not_in_graph
from model.artifact.layer_parts import LayerParts, LayerStep
from model.artifact.manifest import Artifact
from model.artifact.signature import MapKind
from model.errors import ModelError
from model.runtimes.contract import Floats, HeadScores
from model.runtimes.decomposition import GraphDecomposition
from model.runtimes.heads import HostGraph, LoadGraph
from model.runtimes.layer_parts import GraphLayerParts
from model.runtimes.values import GraphValues


class HostGraphs:
    """Part of a runtime: calls to graphs on the host; none for a foreign graph."""

    own_maps = False
    _values: GraphValues | None = None
    _scores: HostGraph | None = None
    _decomposition: GraphDecomposition | None = None
    _layer_parts: GraphLayerParts | None = None

    def use_host_graphs(self, artifact: Artifact, load: LoadGraph) -> None:
        """Use the graphs of an artifact, each loaded at its first call."""
        self._values = GraphValues(artifact, load)
        self._scores = HostGraph(artifact, "head_scores", load)
        self._decomposition = GraphDecomposition(artifact, load)
        self._layer_parts = GraphLayerParts(artifact, load)

    def release_memory(self) -> None:
        """Do nothing, if the runtime keeps no memory between calls."""

    def value_products(
        self, states: Floats, layer: int, heads: Sequence[int], kind: MapKind = "encoder"
    ) -> Floats:
        """Return value products `[S, heads, heads]`.

        Raises:
            ModelError: the graph is foreign, or there is no decoder.

        """
        if self._values is None:
            raise ModelError(not_in_graph("what a head adds", maps=self.own_maps))
        return self._values.products(states, layer, heads, kind)

    def head_scores(self, states: Floats, layer: int, heads: Sequence[int]) -> HeadScores:
        """Return queries, keys and scores.

        Raises:
            ModelError: the graph is foreign.

        """
        if self._scores is None:
            raise ModelError(not_in_graph("what a head compares", maps=self.own_maps))
        return HeadScores(*self._scores.of_heads(layer, heads)(states))

    def decompose(self, step: DecompositionStep) -> DecomposedRows:
        """Return the rows after their layer, and values for the next one.

        Raises:
            ModelError: the graph is foreign.

        """
        if self._decomposition is None:
            raise ModelError(not_in_graph("shares of input tokens", maps=self.own_maps))
        return self._decomposition.step(step)

    def layer_parts(self, step: LayerStep) -> LayerParts:
        """Return the parts of a layer.

        Raises:
            ModelError: the graph is foreign.

        """
        if self._layer_parts is None:
            raise ModelError(not_in_graph("what a layer adds", maps=self.own_maps))
        return self._layer_parts.step(step)
