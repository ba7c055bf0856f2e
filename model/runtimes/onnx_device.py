"""Graphs of an artifact with tensors bound to a device: only requested outputs are copied.

Hidden states and all heads' parameters stay on the device. One small graph pools hidden states to
the requested vectors; another computes attention maps from them.

Notation: B texts, T tokens of all of them, S tokens of one, H hidden size, L layers, N heads, n
sets of rows.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from model.artifact.manifest import Artifact
from model.artifact.signature import ROWS, GraphName, hidden_state_name
from model.numerics.batch import Batch, Ids, coarser, dummies, masked_texts, padded, select, widen
from model.numerics.pooling import TextPooling
from model.runtimes.bound import Bound, HostMemory, Place, Watch, Watched
from model.runtimes.capabilities import capability, find
from model.runtimes.contract import (
    Array,
    Calls,
    Floats,
    HiddenState,
    Runtime,
    Session,
    every_head,
)
from model.runtimes.device_vectors import ALIGNED, DeviceVectors
from model.runtimes.host_graphs import (
    GraphDecoder,
    HeadGraphs,
    graphs_of_parts,
    session_parts,
)

MOST_KEPT_BYTES = 2**28
"""Maximum of hidden states that requests keep on a device; others are copied at once."""
POOLED = ("mean", "cls", "max", "last", "weightedmean")
"""Poolings that the device computes, unless tokens are left out; the host computes all others."""


def sets_of(poolings: Sequence[TextPooling], ends: Ids) -> dict[str, Ids]:
    """Return poolings of `POOLED` as sets of rows of a hidden state `[T, H]`, `[n]` each.

    They are inputs of `device_pooling.onnx`; see `model.export.graphs.device_pooling`.
    """
    texts = np.array([pooling.text for pooling in poolings])
    first = ends[texts] + np.array([pooling.first_token for pooling in poolings])
    count = ends[texts + 1] - first
    modes = np.array([pooling.mode for pooling in poolings])
    return {
        "first_row": np.where(modes == "last", first + count - 1, first),
        "row_count": np.where((modes == "cls") | (modes == "last"), 1, count),
        "maximum": (modes == "max").astype(np.int64),
        "first_weight": np.where(modes == "weightedmean", 1 + first - ends[texts], 0),
        "unit_features": np.array([pooling.unit_features for pooling in poolings], np.int64),
    }


class KeptLayer:
    """Hidden state of a batch on a device, and the rows of the texts that were asked for."""

    def __init__(
        self, values: Any, rows: Sequence[Ids], fetch: Callable[[Any, Ids], Floats]
    ) -> None:
        """Keep an `OrtValue`, of which `fetch` copies some rows."""
        self.values, self.rows = values, rows
        self.size_bytes: int = values.tensor_size_in_bytes()
        self._fetch = fetch
        self._copies: list[Floats] | None = None

    def copies(self) -> list[Floats]:
        """Return the states `[n, H]` of all texts on the host, copied at the first call."""
        if self._copies is None:
            cuts = np.cumsum([len(rows) for rows in self.rows])[:-1]
            self._copies = np.split(self._fetch(self.values, np.concatenate(self.rows)), cuts)
        return self._copies


class KeptState:
    """Hidden state of a text on a device; see `model.runtimes.contract.HiddenState`."""

    def __init__(self, layer: KeptLayer, text: int) -> None:
        """Refer to a text of a layer by its place among the texts that were asked for."""
        self.layer, self.rows = layer, layer.rows[text]
        self.shape = len(self.rows), int(layer.values.shape()[-1])
        self._text = text

    def __len__(self) -> int:
        return len(self.rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        return np.array(self.layer.copies()[self._text], dtype, copy=copy)

    def __reduce__(self) -> tuple[Any, ...]:
        return np.asarray, (np.asarray(self),)


class DeviceHeads(HeadGraphs):
    """Heads of an encoder, whose maps are computed on a device."""

    def __init__(
        self, artifact: Artifact, session: Bound, upload: Callable[[Array], object]
    ) -> None:
        """Copy all heads' parameters to the device by `upload`."""
        super().__init__(artifact)
        self._session = session
        inputs = artifact.manifest.signature["device_attention"].inputs
        self._dtypes = {spec.name: spec.dtype for spec in inputs}
        self._takes_grid = len(inputs[0].axes) == 3
        self._every = [*range(artifact.manifest.config.num_attention_heads)]
        self._uploaded = [
            {name: upload(tensor) for name, tensor in self._feed(layer, self._every).items()}
            for layer in range(artifact.manifest.config.num_hidden_layers)
        ]

    def attention(
        self,
        queries: HiddenState,
        keys: HiddenState,
        layer: int,
        heads: Sequence[int],
        segment: int = 0,
    ) -> Floats:
        """Return maps `[heads, T, S]`.

        Parameters of some heads, or of another segment than 0, come from the host.
        """
        parameters: Mapping[str, object] = self._uploaded[layer]
        if segment or [*heads] != self._every:
            parameters = self._feed(layer, heads, segment)
        feed = {**self._entering(queries, keys), **parameters}
        shape = 1, len(heads), len(queries), len(keys)
        return self._session.fetch(feed, "attention", shape)[0]

    def _feed(self, layer: int, heads: Sequence[int], segment: int = 0) -> dict[str, Array]:
        """Return the parameters of a layer's heads, in the types of the device's graph."""
        names = [name for name in self._dtypes if name not in ("hidden_state", *ROWS)]
        parameters = self.parameters(names, layer, heads, segment)
        return {name: own.astype(self._dtypes[name]) for name, own in parameters.items()}

    def _entering(self, queries: HiddenState, keys: HiddenState) -> dict[str, object]:
        """Return the graph's inputs of states, which are copied if not on the device."""
        if queries is keys and isinstance(queries, KeptState):
            return {"hidden_state": queries.layer.values, **dict.fromkeys(ROWS, queries.rows)}
        states = [queries] if queries is keys else [queries, keys]
        state = np.concatenate(states).astype(self._dtypes["hidden_state"])
        first_key = len(state) - len(keys)
        rows = np.arange(len(queries)), np.arange(first_key, len(state))
        values = state[None] if self._takes_grid else state
        return {"hidden_state": values, **dict(zip(ROWS, rows, strict=True))}


class BoundRuntime(Runtime):
    """ONNX Runtime on a device; see `Runtime`."""

    GRAPHS: tuple[GraphName, ...] = ("encoder", "device_attention", "device_pooling")

    def __init__(
        self,
        artifact: Artifact,
        sessions: Mapping[GraphName, Session],
        upload: Callable[[Array, str, int], object],
        place: Place,
        memory: HostMemory | None = None,
    ) -> None:
        """Copy all heads' parameters to the device.

        `sessions` are of `GRAPHS`, and of the task head and the decoder, if there are any. `upload`
        maps an array, and the kind and index of a device, to the array on it. `memory` is
        page-locked, for outputs; ordinary memory when None.
        """
        self._manifest, self._place = artifact.manifest, place
        self.config = self._manifest.config
        self.provider = sessions["encoder"].get_providers()[0]
        self._watch = watch = Watch(self.provider)
        self._memory = memory or HostMemory(None)
        self._encoder, attention, self._pooling = (
            Bound(sessions[name], place, watch, self._memory) for name in self.GRAPHS
        )
        self.vectors: DeviceVectors | None = None
        self._inputs = [spec.name for spec in self._manifest.signature["encoder"].inputs]
        self._takes_grid = "attention_mask" in self._inputs
        self._kept, self._keeping = weakref.WeakSet[KeptLayer](), threading.Lock()
        heads = DeviceHeads(
            artifact, attention, lambda array: upload(array, place.kind, place.index)
        )
        graphs = {name: Watched(sessions[name], watch) for name in graphs_of_parts(self._manifest)}
        self.parts = session_parts(artifact, heads, graphs, Calls(), aligned=ALIGNED)

    @property
    def alive(self) -> bool:
        """Whether the device still works."""
        return self._watch.alive

    def encode(
        self,
        batch: Batch,
        hidden: Sequence[tuple[int, int]],
        poolings: Sequence[TextPooling],
        head_mask: Floats | None = None,
    ) -> tuple[list[HiddenState], list[Floats]]:
        """Return `[S, H]` per hidden state, on the device, and `[H]` per pooling and mode.

        Texts with nothing but the artifact's own pooling are computed by the graph of vectors,
        whatever the other texts need, so that a text's vector does not depend on them.
        """
        texts = {*range(len(batch.padded_index))}
        others = self._unusual(batch, hidden, poolings, head_mask) if self.vectors else texts
        if self.vectors and not others:
            return [], self.vectors.encode(batch, poolings)
        if others == texts:
            return self._from_states(batch, hidden, poolings, head_mask)
        states: list[HiddenState] = []
        vectors: dict[int, Floats] = {}
        for own in (texts - others, others):
            rows = {text: row for row, text in enumerate(sorted(own))}
            asked = [i for i, pooling in enumerate(poolings) if pooling.text in rows]
            of_texts, pooled = self.encode(
                select(batch, [*rows]),
                [(rows[text], layer) for text, layer in hidden if text in rows],
                [replace(poolings[i], text=rows[poolings[i].text]) for i in asked],
                None if head_mask is None else head_mask[[*rows]],
            )
            states += of_texts
            vectors |= zip(asked, pooled, strict=True)
        return states, [vectors[i] for i in range(len(poolings))]

    def use_vectors(self, session: Session) -> DeviceVectors:
        """Compute the usual request by a session of the graph of vectors."""
        bound = Bound(session, self._place, self._watch, self._memory)
        self.vectors = DeviceVectors(self._manifest, bound)
        return self.vectors

    def _unusual(
        self,
        batch: Batch,
        hidden: Sequence[tuple[int, int]],
        poolings: Sequence[TextPooling],
        head_mask: Floats | None,
    ) -> set[int]:
        """Return the texts that need more than the artifact's own pooling of all their tokens."""
        size, last = self.config.hidden_size, self.config.num_hidden_layers
        usual = self._manifest.vectors_pooling
        others = {text for text, _ in hidden}
        others |= {
            pooling.text
            for pooling in poolings
            if (pooling.layer, pooling.mode, pooling.first_token) != (last, usual, 0)
            or pooling.left_out
            or pooling.unit_features not in (0, size)
        }
        others |= {*range(len(batch.padded_index))} - {pooling.text for pooling in poolings}
        others.update(masked_texts(batch))
        if head_mask is not None:
            others.update(np.flatnonzero((head_mask != 1).any(axis=(1, 2))).tolist())
        return others

    def _from_states(
        self,
        batch: Batch,
        hidden: Sequence[tuple[int, int]],
        poolings: Sequence[TextPooling],
        head_mask: Floats | None,
    ) -> tuple[list[HiddenState], list[Floats]]:
        """Return hidden states and vectors, both from the graph of hidden states."""
        ends, states, vectors = batch.cu_seqlens, dict[int, HiddenState](), dict[int, Floats]()
        layers = {layer for _, layer in hidden} | {pooling.layer for pooling in poolings}
        by_layer, rows = self._states(batch, sorted(layers), head_mask)
        of_texts = [rows[first:end] for first, end in itertools.pairwise(ends)]
        for layer, values in by_layer.items():
            if asked := [i for i, (_, of) in enumerate(hidden) if of == layer]:
                kept = self._keep(values, [of_texts[hidden[i][0]] for i in asked])
                states |= zip(asked, kept, strict=True)
            if asked := [i for i, pooling in enumerate(poolings) if pooling.layer == layer]:
                pooled = self._pooled(values, rows, [poolings[i] for i in asked], ends)
                vectors |= zip(asked, pooled, strict=True)
        return [states[i] for i in range(len(hidden))], [vectors[i] for i in range(len(poolings))]

    def hidden_states(
        self, batch: Batch, layers: Sequence[int], head_mask: Floats | None = None
    ) -> list[Floats]:
        """Return `[T, H]` per layer."""
        by_layer, rows = self._states(batch, sorted({*layers}), head_mask)
        return [self._rows(by_layer[layer], rows) for layer in layers]

    def warm_up(self, batch_tokens: int, longest: int) -> None:
        """Run the fullest batch of each grid length, the longest first, and its attention.

        The device's arena allocates memory for the first batch, which all others then reuse.
        """
        last = self.config.num_hidden_layers
        heads = range(self.config.num_attention_heads)
        lengths = {min(coarser(n, ALIGNED), longest) for n in range(1, longest + 1)}
        for length in sorted(lengths, reverse=True):
            texts = range(max(1, batch_tokens // length))
            vectors = [TextPooling(i, last, "mean") for i in texts]
            batch = dummies([length] * len(texts), self.config.pixel_features)
            self._from_states(batch, [], vectors, None)
            if self.vectors:
                self.vectors.warm_up([length] * len(texts))
            states = np.zeros((length, self.config.hidden_size), np.float32)
            capability(self, DeviceHeads).attention(states, states, 0, heads)
        if decoder := find(self, GraphDecoder):
            decoder.warm_up(batch_tokens, longest)

    def _states(
        self, batch: Batch, layers: Sequence[int], head_mask: Floats | None
    ) -> tuple[dict[int, object], Ids]:
        """Return each layer's hidden state on the device, and the row of each token in them, `[T]`.

        They are `[T, H]`, or `[B, S, H]` if the graph takes the padded grid. Tokens of one text
        have consecutive rows.
        """
        texts, longest = batch.padded_index.shape
        wide = widen(batch, texts, coarser(longest, ALIGNED))
        inputs, rows = wide.inputs, np.arange(len(batch.input_ids))
        if self._takes_grid:
            grids = padded(wide, self.config.pad_token_id)
            inputs, rows = tuple(grids[name] for name in self._inputs[:-1]), wide.packed_index
        mask = every_head(batch, self.config) if head_mask is None else head_mask
        feed = dict(zip(self._inputs, (*inputs, mask), strict=True))
        states = self._encoder.keep(feed, [hidden_state_name(layer) for layer in layers])
        return dict(zip(layers, states, strict=True)), rows

    def _keep(self, values: object, rows: Sequence[Ids]) -> Sequence[HiddenState]:
        """Return texts' hidden states on the device, or copies if it keeps too many already."""
        layer = KeptLayer(values, rows, self._rows)
        with self._keeping:
            kept_bytes = sum(other.size_bytes for other in self._kept)
            if kept_bytes + layer.size_bytes <= MOST_KEPT_BYTES:
                self._kept.add(layer)
                return [KeptState(layer, index) for index in range(len(rows))]
        return layer.copies()

    def _rows(self, values: object, rows: Ids) -> Floats:
        """Return rows `[n]` of a hidden state on the device, `[n, H]`: means of a row each."""
        ones, zeros = np.ones_like(rows), np.zeros_like(rows)
        modes = dict.fromkeys(("maximum", "first_weight", "unit_features"), zeros)
        return self._vectors(values, {"first_row": rows, "row_count": ones, **modes})

    def _pooled(
        self, values: object, rows: Ids, poolings: Sequence[TextPooling], ends: Ids
    ) -> list[Floats]:
        """Return the vector of each pooling."""
        vectors: dict[int, Floats] = {}
        hosted = {i for i, own in enumerate(poolings) if own.left_out or own.mode not in POOLED}
        if on_device := [i for i in range(len(poolings)) if i not in hosted]:
            sets = sets_of([poolings[i] for i in on_device], ends)
            sets["first_row"] = rows[sets["first_row"]]
            vectors |= zip(on_device, self._vectors(values, sets), strict=True)
        for i in hosted:
            own = poolings[i]
            state = self._rows(values, rows[ends[own.text] : ends[own.text + 1]])
            (vectors[i],) = self.pooled([state], [own])
        return [vectors[i] for i in range(len(poolings))]

    def _vectors(self, values: object, sets: Mapping[str, Ids]) -> Floats:
        """Return the vector of each set of rows of a hidden state on the device, `[n, H]`."""
        columns = np.arange(sets["row_count"].max())
        feed = {"hidden_state": values, "columns": columns, **sets}
        return self._pooling.fetch(
            feed, "vectors", (len(sets["first_row"]), self.config.hidden_size)
        )
