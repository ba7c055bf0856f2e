"""Capabilities over graphs: heads and decomposition on the host, task heads and decoders.

Sessions of the graphs of heads are created, and `weights.safetensors` is mapped, at the first
request that needs them: a service without such requests uses no memory for them. Calls are
thread-safe; two threads may load a graph at the same time, and then keep one session of it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence

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
from model.artifact.manifest import DECODER_HEADS, GRAPHS, HEADS, WEIGHTS, Artifact, Manifest
from model.artifact.mapped import mapped_tensors
from model.artifact.signature import (
    ATTENTION_OF,
    DECODER_KINDS,
    STATES,
    VALUES_OF,
    GraphName,
    HeadGraph,
    MapKind,
    Shapes,
    cross_query_name,
    decoder_state_name,
    head_parameter_name,
)
from model.config.decoder import DecoderConfig
from model.config.encoder import EncoderConfig
from model.numerics.batch import Ids, coarser, pack, widen
from model.runtimes.capabilities import Decoder, Decomposition, TaskHead
from model.runtimes.contract import (
    LOGITS,
    Array,
    Calls,
    Decoding,
    Floats,
    Heads,
    Session,
    cut,
    every_head,
)
from model.runtimes.registry import host_session

_KEYS = (
    (re.compile(r"^(.+)\.([a-z]+)\.weight$"), r"\1.low_rank.\2.{}.weight"),
    (re.compile(r"^([a-z]+)_weight\.(\d+)$"), r"\1_{}.\2"),
)
"""Pattern of a weight's key → key of its low-rank matrices."""


def adapted(tensors: Mapping[str, Floats], key: str, segment: int, config: EncoderConfig) -> Floats:
    """Return a tensor of a file for texts of a segment, whose adapter k makes W of it W + B_k A_k.

    `weights.safetensors` has `….low_rank.NAME.down.weight` and `….up.weight` for a map
    `….NAME.weight`, and `heads.safetensors` has `NAME_down.LAYER` and `NAME_up.LAYER` for
    `NAME_weight.LAYER`: matrices of all adapters side by side. See `model.low_rank`.
    """
    own = tensors[key]
    if not segment or config.adapters is None:
        return own
    rank = config.adapters.rank
    part = slice(rank * (segment - 1), rank * segment)
    for pattern, low_rank in _KEYS:
        down, up = (pattern.sub(low_rank.format(name), key) for name in ("down", "up"))
        if down != key and down in tensors:
            return own + tensors[up][..., part] @ tensors[down][..., part, :]
    return own


class HeadGraphs(Heads):
    """Graphs of heads of a kind. A decoder's graphs compute no scores."""

    def __init__(
        self, artifact: Artifact, kind: MapKind = "encoder", attention: Session | None = None
    ) -> None:
        """Map the parameters of the heads; `attention` is a session of the graph of maps."""
        self.artifact, self._kind = artifact, kind
        with reading(path := artifact.path(HEADS if kind == "encoder" else DECODER_HEADS)):
            self._tensors = mapped_tensors(path)
        self._names: dict[HeadGraph, GraphName] = {
            "attention": ATTENTION_OF[kind],
            "value_norms": VALUES_OF[kind],
            "head_scores": "head_scores",
        }
        self._sessions: dict[GraphName, Session] = {}
        if attention:
            self._sessions[ATTENTION_OF[kind]] = attention

    def run(
        self,
        graph: HeadGraph,
        states: Sequence[Floats],
        layer: int,
        heads: Sequence[int],
        segment: int,
    ) -> list[Floats]:
        """Return all outputs of a graph, whose inputs after the states are parameters."""
        name = self._names[graph]
        signature = self.artifact.manifest.signature[name]
        inputs = [spec.name for spec in signature.inputs]
        feed: dict[str, Array] = dict(zip(inputs, states, strict=False))
        feed |= self.parameters(inputs[len(states) :], layer, heads, segment)
        return self.session(name).run([spec.name for spec in signature.outputs], feed)

    def parameters(
        self, names: Sequence[str], layer: int, heads: Sequence[int], segment: int = 0
    ) -> dict[str, Floats]:
        """Return parameters `[heads, …]` of a layer by name; all heads are not copied."""
        chosen, config, feed = [*heads], self.artifact.manifest.config, {}
        for name in names:
            key = head_parameter_name(name, layer, self._kind)
            own = adapted(self._tensors, key, segment, config)
            feed[name] = np.ascontiguousarray(own if chosen == [*range(len(own))] else own[chosen])
        return feed

    def session(self, graph: GraphName) -> Session:
        """Return the session of a graph, loaded at the first call."""
        if graph not in self._sessions:
            self._sessions[graph] = host_session(self.artifact.path(GRAPHS[graph]))
        return self._sessions[graph]


class DecompositionGraphs(Decomposition):
    """Graphs of an encoder's decomposition, of a whole artifact."""

    def __init__(self, heads: HeadGraphs) -> None:
        """Compute with the parameters and sessions of the encoder's heads."""
        self._heads = heads

    @functools.cached_property
    def _weights(self) -> Mapping[str, Floats]:
        with reading(path := self._heads.artifact.path(WEIGHTS)):
            return mapped_tensors(path)

    def decompose(self, step: DecompositionStep) -> DecomposedRows:
        """Return the rows after their layer, and their values for the next layer's heads."""
        heads, manifest = self._heads, self._heads.artifact.manifest
        config = manifest.config
        parts, segment = step.parts, step.segment
        if step.states is not None and step.values is not None:
            names = [spec.name for spec in manifest.signature["attention"].inputs[len(STATES) :]]
            every = range(config.num_attention_heads)
            feed = {
                **self._inputs(layer_shapes(config), layer_keys(config, step.layer), segment),
                **heads.parameters(names, step.layer, every, segment),
                "rows": np.arange(step.first_row, step.first_row + len(parts)),
                "states": step.states,
                "values": step.values,
                "parts": parts,
            }
            (parts,) = heads.session("decomposition").run(["decomposed"], feed)
        after = step.layer + 1
        if after == config.num_hidden_layers and not config.has_final_norm:
            return DecomposedRows(parts, None)
        shapes = value_shapes(config)
        feed = self._inputs(shapes, value_keys(config, after), segment) | {"parts": parts}
        if APPLIES in shapes:
            feed[APPLIES] = np.full(1, norm_applies(config, after), np.float32)
        graph = heads.session("decomposition_values")
        if after < config.num_hidden_layers:
            return DecomposedRows(parts, graph.run(["values"], feed)[0])
        return DecomposedRows(graph.run(["entering"], feed)[0], None)

    def _inputs(self, shapes: Shapes, keys: Mapping[str, str], segment: int) -> dict[str, Array]:
        """Return a graph's inputs by name; zeros for inputs without a key."""
        config = self._heads.artifact.manifest.config
        return {
            name: adapted(self._weights, keys[name], segment, config)
            if name in keys
            else np.zeros(shape, np.float32)
            for name, shape in shapes.items()
        }


def session_parts(
    artifact: Artifact,
    heads: HeadGraphs,
    sessions: Mapping[GraphName, Session],
    calls: Calls,
    *,
    lone: Session | None = None,
    aligned: int = 1,
) -> list[object]:
    """Return the capabilities of an artifact over the sessions of `graphs_of_parts`.

    `calls`, `lone` and `aligned` are a decoder's; see `GraphDecoder`.
    """
    manifest, parts = artifact.manifest, list[object]([heads])
    if not manifest.serving_only:
        parts.append(DecompositionGraphs(heads))
    if manifest.task:
        session = sessions["task"]
        head = TaskHead(manifest.task, lambda rows: session.run(["scores"], {"rows": rows})[0])
        parts.append(head)
    if manifest.decoder:
        parts.append(
            GraphDecoder(artifact, manifest.decoder, sessions, calls, lone=lone, aligned=aligned)
        )
    return parts


DECODER_GRAPHS: tuple[GraphName, ...] = (
    "decoder",
    *(ATTENTION_OF[kind] for kind in DECODER_KINDS),
    "logprobs",
)
"""Graphs of a decoder that are loaded at the start."""


def graphs_of_parts(manifest: Manifest) -> tuple[GraphName, ...]:
    """Return the graphs of a task head and a decoder that a runtime loads at its start."""
    task: tuple[GraphName, ...] = ("task",) if manifest.task else ()
    return (*task, *(DECODER_GRAPHS if manifest.decoder else ()))


class GraphDecoder(Decoder):
    """Decoder graphs, on a host or a device; value products are computed on the host.

    The encoder's states come from the host, and requested outputs go back to it.
    """

    def __init__(
        self,
        artifact: Artifact,
        config: DecoderConfig,
        sessions: Mapping[GraphName, Session],
        calls: Calls,
        *,
        lone: Session | None = None,
        aligned: int = 1,
    ) -> None:
        """Take a session of each of `DECODER_GRAPHS`.

        `calls` counts the runtime's calls, whose encoder shares the cores with the decoder. `lone`
        is a session of `decoder` with all cores, for single short batches. `aligned` is the
        alignment of the padded grid's row length.
        """
        self.config = config
        self._sessions, self._calls, self._aligned = sessions, calls, aligned
        self._lone = lone or sessions["decoder"]
        self.heads = {
            kind: HeadGraphs(artifact, kind, sessions[ATTENTION_OF[kind]]) for kind in DECODER_KINDS
        }
        self._rows = max(1, LOGITS // config.layers.vocab_size)

    def decode(self, asked: Decoding) -> tuple[list[Floats], list[Floats]]:
        """Return `[T, H]` per state, and per layer's query states."""
        layers = sorted({layer for _, layer in asked.states})
        queries = sorted({layer for _, layer in asked.cross})
        names = [decoder_state_name(layer) for layer in layers]
        names += [cross_query_name(layer) for layer in queries]
        if not names:
            return [], []  # an empty list of names would request every output
        feed = self._feed(asked)
        with self._calls.call(asked.target) as alone:
            session = self._lone if alone else self._sessions["decoder"]
            outputs = [rows.astype(np.float32, copy=False) for rows in session.run(names, feed)]
        states = dict(zip(layers, outputs[: len(layers)], strict=True))
        cross = dict(zip(queries, outputs[len(layers) :], strict=True))
        return cut(states, asked.target, asked.states), cut(cross, asked.target, asked.cross)

    def logprobs(self, rows: Floats, labels: Ids) -> Floats:
        """Return log-probabilities `[n]`, computed in blocks of rows."""
        session, step = self._sessions["logprobs"], self._rows
        parts = [
            session.run(
                ["logprobs"],
                {"rows": rows[first : first + step], "labels": labels[first : first + step]},
            )[0]
            for first in range(0, len(rows), step)
        ]
        return np.concatenate(parts)

    def warm_up(self, batch_tokens: int, longest: int) -> None:
        """Run the largest batch of targets as long as their texts, maps and log-probabilities."""
        config = self.config.layers
        length = min(longest, config.max_position_embeddings)
        texts = range(max(1, batch_tokens // (2 * length)))
        batch = pack([(np.zeros(length, np.int64), np.zeros(length, np.int64)) for _ in texts])
        encoded = np.zeros((len(batch.input_ids), config.hidden_size), np.float32)
        last = [(text, config.num_hidden_layers) for text in texts]
        (states, *_), _ = self.decode(Decoding(batch, encoded, batch, last))
        for kind in DECODER_KINDS:
            self.heads[kind].attention(states, states, 0, range(config.num_attention_heads))
        self.logprobs(states, batch.input_ids[:length])

    def _feed(self, asked: Decoding) -> dict[str, Array]:
        """Return the inputs of the graph; aligned grids have coarser row lengths."""
        ones = every_head(asked.target, self.config.layers)
        target, source = asked.target, asked.source
        if self._aligned > 1:
            target, source = (
                widen(
                    batch,
                    len(batch.padded_index),
                    coarser(batch.padded_index.shape[1], self._aligned),
                )
                for batch in (target, source)
            )
        return {
            "input_ids": target.input_ids,
            "position_ids": target.position_ids,
            "padded_index": target.padded_index,
            "packed_index": target.packed_index,
            "source_padded_index": source.padded_index,
            "encoded": asked.encoded,
            "head_mask": ones if asked.head_mask is None else asked.head_mask,
            "cross_head_mask": ones if asked.cross_head_mask is None else asked.cross_head_mask,
        }
