"""Capabilities that the host computes in float32, whatever computes a runtime's encoder.

Sessions are created, and weight files mapped, at the first request that needs them: a service
without such requests uses no memory for them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from model.artifact.access import reading
from model.artifact.decomposition import (
    APPLIES,
    DecomposedRows,
    DecompositionStep,
    Shapes,
    layer_keys,
    layer_shapes,
    norm_applies,
    value_keys,
    value_shapes,
)
from model.artifact.manifest import (
    DECOMPOSITION_GRAPH,
    DECOMPOSITION_VALUES_GRAPH,
    HEADS,
    WEIGHTS,
    Artifact,
)
from model.artifact.mapped import mapped_tensors
from model.artifact.signature import STATES, head_parameter_name
from model.numerics.low_rank import of_segment
from model.numerics.task_head import TaskConfig
from model.runtimes.capabilities import Decomposition, HeadScoring, TaskHead
from model.runtimes.contract import Floats, HeadScores
from model.runtimes.heads import GraphValues, HostGraph
from model.runtimes.sessions import Array, LoadGraph, Session

Feed = dict[str, Array]


class _Loaded(NamedTuple):
    """Sessions and weights for the steps."""

    layer: Session
    values: Session
    heads: Mapping[str, Floats]
    weights: Mapping[str, Floats]


class GraphDecomposition(Decomposition):
    """Steps of a decomposition; calls are thread-safe."""

    def __init__(self, artifact: Artifact, session: LoadGraph) -> None:
        """Keep the arguments; nothing is loaded yet."""
        self._artifact = artifact
        self._session = session
        self._config = artifact.manifest.config
        self._lock = threading.Lock()
        self._kept: _Loaded | None = None

    def decompose(self, step: DecompositionStep) -> DecomposedRows:
        """Return the rows after their layer, and their values for the next layer's heads."""
        loaded, config = self._loaded(), self._config
        heads, weights = (
            of_segment(tensors, step.segment, config) for tensors in (loaded.heads, loaded.weights)
        )
        loaded = loaded._replace(heads=heads, weights=weights)
        parts = step.parts
        if step.states is not None and step.values is not None:
            parts = self._through(loaded, step, step.states, step.values)
        after = step.layer + 1
        if after < config.num_hidden_layers:
            feed = self._entering(loaded, after) | {"parts": parts}
            return DecomposedRows(parts, loaded.values.run(["values"], feed)[0])
        if config.has_final_norm:
            feed = self._entering(loaded, after) | {"parts": parts}
            (parts,) = loaded.values.run(["entering"], feed)
        return DecomposedRows(parts, None)

    def _through(
        self, loaded: _Loaded, step: DecompositionStep, states: Floats, values: Floats
    ) -> Floats:
        heads = self._artifact.manifest.signature["attention"].inputs[len(STATES) :]
        shapes, keys = layer_shapes(self._config), layer_keys(self._config, step.layer)
        feed: Feed = _parameters(shapes, keys, loaded.weights) | {
            spec.name: loaded.heads[head_parameter_name(spec.name, step.layer)] for spec in heads
        }
        feed["rows"] = np.arange(step.first_row, step.first_row + len(step.parts))
        feed |= {"states": states, "values": values, "parts": step.parts}
        return loaded.layer.run(["decomposed"], feed)[0]

    def _entering(self, loaded: _Loaded, layer: int) -> Feed:
        shapes = value_shapes(self._config)
        feed = _parameters(shapes, value_keys(self._config, layer), loaded.weights)
        if APPLIES in shapes:
            feed[APPLIES] = np.full(1, norm_applies(self._config, layer), np.float32)
        return feed

    def _loaded(self) -> _Loaded:
        with self._lock:
            if self._kept is None:
                self._kept = self._load()
            return self._kept

    def _load(self) -> _Loaded:
        artifact = self._artifact
        layer, values = (
            self._session(artifact.path(name))
            for name in (DECOMPOSITION_GRAPH, DECOMPOSITION_VALUES_GRAPH)
        )
        tensors = []
        for name in (HEADS, WEIGHTS):
            with reading(artifact.path(name)):
                tensors.append(mapped_tensors(artifact.path(name)))
        return _Loaded(layer, values, *tensors)


def _parameters(shapes: Shapes, keys: Mapping[str, str], weights: Mapping[str, Floats]) -> Feed:
    """Return a graph's inputs by name; zeros for inputs without a key."""
    return {
        name: weights[keys[name]] if name in keys else np.zeros(shape, np.float32)
        for name, shape in shapes.items()
    }


class GraphHeadScores(HeadScoring):
    """Queries, keys and scores of heads; calls are thread-safe."""

    def __init__(self, artifact: Artifact, load: LoadGraph) -> None:
        """Keep the arguments; nothing is loaded yet. See `HostGraph`."""
        self._graph = HostGraph(artifact, "head_scores", load)

    def head_scores(
        self, states: Floats, layer: int, heads: Sequence[int], segment: int = 0
    ) -> HeadScores:
        """Return queries, keys and scores."""
        return HeadScores(*self._graph.of_heads(layer, heads, segment)(states))


def session_head(config: TaskConfig, session: Session) -> TaskHead:
    """Return the task head of a session."""
    return TaskHead(config, lambda rows: session.run(["scores"], {"rows": rows})[0])


def host_parts(artifact: Artifact, load: LoadGraph) -> list[object]:
    """Return the parts by an artifact's graphs for the host, each loaded at its first call."""
    parts: list[object] = [GraphValues(artifact, load), GraphHeadScores(artifact, load)]
    if not artifact.manifest.serving_only:
        parts.append(GraphDecomposition(artifact, load))
    return parts
