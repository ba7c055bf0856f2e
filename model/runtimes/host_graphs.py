"""Capabilities that the host computes in float32 by graphs without weights of their own.

Sessions are created, and weight files mapped, at the first request that needs them: a service
without such requests uses no memory for them. Calls are thread-safe.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from model.artifact.decomposition import (
    APPLIES,
    DecomposedRows,
    DecompositionStep,
    layer_keys,
    layer_shapes,
    norm_applies,
    value_keys,
    value_shapes,
)
from model.artifact.integrity import reading
from model.artifact.manifest import DECODER_HEADS, GRAPHS, HEADS, WEIGHTS, Artifact
from model.artifact.mapped import mapped_tensors
from model.artifact.signature import (
    ATTENTION_OF,
    STATES,
    VALUES_OF,
    GraphName,
    MapKind,
    Shapes,
    head_parameter_name,
)
from model.config.encoder import EncoderConfig
from model.numerics.task_head import TaskConfig
from model.runtimes.capabilities import Decomposition, HeadOutputs, HeadScoring, TaskHead
from model.runtimes.contract import Array, Floats, HeadScores, LoadGraph, Session

_KEYS = (
    (re.compile(r"^(.+)\.([a-z]+)\.weight$"), r"\1.low_rank.\2.{}.weight"),
    (re.compile(r"^([a-z]+)_weight\.(\d+)$"), r"\1_{}.\2"),
)
"""Pattern of a weight's key → key of its low-rank matrices."""


class AdaptedTensors(Mapping[str, Floats]):
    """Tensors of a file; a weight W with an adapter is W + B_k A_k, computed at each access.

    `weights.safetensors` has `….low_rank.NAME.down.weight` and `….up.weight` for a map
    `….NAME.weight`, and `heads.safetensors` has `NAME_down.LAYER` and `NAME_up.LAYER` for
    `NAME_weight.LAYER`: matrices of all adapters side by side. See `model.low_rank`.
    """

    def __init__(self, tensors: Mapping[str, Floats], adapter: int, rank: int) -> None:
        """Keep the tensors by key, the number of the adapter, 1 … K, and its rank."""
        self._tensors = tensors
        self._part = slice(rank * (adapter - 1), rank * adapter)

    def __getitem__(self, key: str) -> Floats:
        """Return the tensor of a key, with the adapter's addition if it has one."""
        own, part = self._tensors[key], self._part
        for pattern, low_rank in _KEYS:
            down, up = (pattern.sub(low_rank.format(name), key) for name in ("down", "up"))
            if down != key and down in self._tensors:
                added = self._tensors[up][..., part] @ self._tensors[down][..., part, :]
                return own + added
        return own

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys."""
        return iter(self._tensors)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self._tensors)


def of_segment(
    tensors: Mapping[str, Floats], segment: int, config: EncoderConfig
) -> Mapping[str, Floats]:
    """Return the tensors of a file for texts of a segment, which may have an adapter of its own."""
    if not segment or config.adapters is None:
        return tensors
    return AdaptedTensors(tensors, segment, config.adapters.rank)


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
            self._session(artifact.path(GRAPHS[name]))
            for name in ("decomposition", "decomposition_values")
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
