"""Capabilities that the host computes in float32 by graphs without weights of their own.

Their sessions are created, and `weights.safetensors` is mapped, at the first request that needs
them: a service without such requests uses no memory for them. Calls are thread-safe; two threads
may load a graph at the same time, and then keep one session of it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

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
from model.runtimes.capabilities import Decomposition, Heads, TaskHead
from model.runtimes.contract import Array, Floats, HeadScores, HiddenState, Session
from model.runtimes.registry import host_session

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


def in_parts(states: Floats, heads: int, of_some: Callable[[Floats], Floats]) -> Floats:
    """Compute results in blocks of tokens, so that the heads' added vectors stay within `FLOATS`.

    `states` are `[S, H]`; `of_some` maps some of their rows to as many rows of the result.
    """
    step = max(1, FLOATS // (heads * states.shape[1]))
    firsts = range(0, max(1, len(states)), step)
    parts = [of_some(states[first : first + step]) for first in firsts]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


class HeadParameters:
    """Parameters of all heads of a kind, as inputs of the graphs of heads."""

    def __init__(self, artifact: Artifact, kind: MapKind = "encoder") -> None:
        self._config, self._kind = artifact.manifest.config, kind
        with reading(path := artifact.path(HEADS if kind == "encoder" else DECODER_HEADS)):
            self._tensors = mapped_tensors(path)

    def feed(
        self, names: Sequence[str], layer: int, heads: Sequence[int], segment: int = 0
    ) -> dict[str, Floats]:
        """Return parameters `[heads, …]` of a layer by name; all heads are not copied."""
        tensors, chosen, feed = of_segment(self._tensors, segment, self._config), [*heads], {}
        for name in names:
            own = tensors[head_parameter_name(name, layer, self._kind)]
            feed[name] = np.ascontiguousarray(own if chosen == [*range(len(own))] else own[chosen])
        return feed


class HeadGraphs(Heads):
    """Graphs of heads of a kind. A decoder's graphs compute no scores."""

    def __init__(
        self, artifact: Artifact, kind: MapKind = "encoder", attention: Session | None = None
    ) -> None:
        """Map the parameters of the heads; `attention` is a session of the graph of maps."""
        self.artifact, self._kind = artifact, kind
        self.parameters = HeadParameters(artifact, kind)
        self._sessions: dict[GraphName, Session] = {}
        if attention:
            self._sessions[ATTENTION_OF[kind]] = attention

    def attention(
        self,
        queries: HiddenState,
        keys: HiddenState,
        layer: int,
        heads: Sequence[int],
        segment: int = 0,
    ) -> Floats:
        """Return maps `[heads, T, S]`."""
        states = [np.asarray(state)[None] for state in (queries, keys)]
        maps: Floats = self._run(ATTENTION_OF[self._kind], states, layer, heads, segment)[0][0]
        return maps

    def value_products(
        self, states: Floats, layer: int, heads: Sequence[int], segment: int = 0
    ) -> Floats:
        """Return products `[S, n, n]` for key states `[S, H]`."""
        graph = VALUES_OF[self._kind]
        return in_parts(
            states, len(heads), lambda rows: self._run(graph, [rows], layer, heads, segment)[0]
        )

    def head_scores(
        self, states: Floats, layer: int, heads: Sequence[int], segment: int = 0
    ) -> HeadScores:
        """Return queries, keys and scores."""
        return HeadScores(*self._run("head_scores", [states], layer, heads, segment))

    def _run(
        self,
        graph: GraphName,
        states: Sequence[Floats],
        layer: int,
        heads: Sequence[int],
        segment: int,
    ) -> list[Floats]:
        """Return all outputs of a graph whose first inputs are states, the others parameters."""
        names = [spec.name for spec in self.artifact.manifest.signature[graph].inputs]
        outputs = [spec.name for spec in self.artifact.manifest.signature[graph].outputs]
        feed: dict[str, Array] = dict(zip(names, states, strict=False))
        feed |= self.parameters.feed(names[len(states) :], layer, heads, segment)
        return self.session(graph).run(outputs, feed)

    def session(self, graph: GraphName) -> Session:
        """Return the session of a graph, loaded at the first call."""
        if graph not in self._sessions:
            self._sessions[graph] = host_session(self.artifact.path(GRAPHS[graph]))
        return self._sessions[graph]


class EncoderGraphs(HeadGraphs, Decomposition):
    """Graphs of an encoder's heads and decomposition, of a whole artifact."""

    @functools.cached_property
    def _weights(self) -> Mapping[str, Floats]:
        with reading(path := self.artifact.path(WEIGHTS)):
            return mapped_tensors(path)

    def decompose(self, step: DecompositionStep) -> DecomposedRows:
        """Return the rows after their layer, and their values for the next layer's heads."""
        manifest, config = self.artifact.manifest, self.artifact.manifest.config
        weights, parts = of_segment(self._weights, step.segment, config), step.parts
        if step.states is not None and step.values is not None:
            names = [spec.name for spec in manifest.signature["attention"].inputs[len(STATES) :]]
            heads = range(config.num_attention_heads)
            feed = {
                **_inputs(layer_shapes(config), layer_keys(config, step.layer), weights),
                **self.parameters.feed(names, step.layer, heads, step.segment),
                "rows": np.arange(step.first_row, step.first_row + len(parts)),
                "states": step.states,
                "values": step.values,
                "parts": parts,
            }
            (parts,) = self.session("decomposition").run(["decomposed"], feed)
        after = step.layer + 1
        if after == config.num_hidden_layers and not config.has_final_norm:
            return DecomposedRows(parts, None)
        shapes = value_shapes(config)
        feed = _inputs(shapes, value_keys(config, after), weights) | {"parts": parts}
        if APPLIES in shapes:
            feed[APPLIES] = np.full(1, norm_applies(config, after), np.float32)
        graph = self.session("decomposition_values")
        if after < config.num_hidden_layers:
            return DecomposedRows(parts, graph.run(["values"], feed)[0])
        return DecomposedRows(graph.run(["entering"], feed)[0], None)


def _inputs(
    shapes: Shapes, keys: Mapping[str, str], weights: Mapping[str, Floats]
) -> dict[str, Array]:
    """Return a graph's inputs by name; zeros for inputs without a key."""
    return {
        name: weights[keys[name]] if name in keys else np.zeros(shape, np.float32)
        for name, shape in shapes.items()
    }


def session_head(config: TaskConfig, session: Session) -> TaskHead:
    """Return the task head of a session."""
    return TaskHead(config, lambda rows: session.run(["scores"], {"rows": rows})[0])


def host_parts(artifact: Artifact, attention: Session | None = None) -> list[object]:
    """Return the parts that the host computes; `attention` is a session of the graph of maps."""
    graphs = HeadGraphs if artifact.manifest.serving_only else EncoderGraphs
    return [graphs(artifact, attention=attention)]
