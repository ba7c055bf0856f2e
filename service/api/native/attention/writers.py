"""Layout of /attention replies, and their writers as JSON or safetensors.

Notation: B texts, S_i tokens of text i and T_i of its target, T of all targets, k = min(top_k, keys
of a map); Q selected queries and K selected keys of a map, P maximum rows and columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from service.api.native.texts import Envelope, text_fields, text_tensors
from service.api.wire.json_pieces import (
    Spec,
    aligned,
    as_bytes,
    as_json,
    float16_weights,
    grouped,
    json_pieces,
    list_pieces,
    member_pieces,
    safetensors_head,
)
from service.api.wire.media import (
    JSON,
    JSON_BYTES_PER_FLOAT,
    JSON_BYTES_PER_INDEX,
    SAFETENSORS,
    Part,
    Unwritten,
)
from service.engines.contract import Floats
from service.inference.attention.map_parts import bins, indices_of
from service.inference.attention.maps import (
    PREFIXES,
    STATISTICS_OF,
    AttentionSelection,
    LayerMaps,
    Lengths,
    TextSummary,
    Weights,
)
from service.inference.attention.statistics import Indices
from service.inference.outputs.field import Array
from service.inference.tokenization.text import Text


def json_bytes(selection: AttentionSelection, texts: Sequence[Text]) -> int:
    """Return an upper bound of the bytes of the JSON format."""
    total = 0
    for index, text in enumerate(texts):
        own = Lengths.of(text)
        for spec in text_specs(selection, index, text):
            each = JSON_BYTES_PER_INDEX if spec.dtype == "int32" else JSON_BYTES_PER_FLOAT
            total += spec.nbytes // np.dtype(spec.dtype).itemsize * each
        if "logprobs" in selection.include:
            total += own.target * JSON_BYTES_PER_FLOAT
        numbers = sum(values.size for values in part_places(selection, own).values())
        total += numbers * JSON_BYTES_PER_INDEX
    return total


def part_places(selection: AttentionSelection, lengths: Lengths) -> dict[str, Indices]:
    """Return the places of a text's map parts by field name, prefixed with the kind of maps.

    `queries` `[Q]` and `keys` `[K]` are the requested token indices, non-negative. For pooled maps,
    `bins.queries` `[min(Q, P), 2]` and `bins.keys` `[min(K, P), 2]` hold the start and end of each
    row and column among these.
    """
    part, places_by_name = selection.part, dict[str, Indices]()
    asked = {"queries": part.queries, "keys": part.keys}
    for kind in selection.maps:
        prefix, sizes = PREFIXES[kind], lengths.shape(kind)
        for (name, values), size in zip(asked.items(), sizes, strict=True):
            if values is not None:
                places_by_name[prefix + name] = indices_of(values, size)
            if part.max_size is not None:
                wanted = size if values is None else len(values)
                places_by_name[f"{prefix}bins.{name}"] = bins(wanted, part.max_size)
    return places_by_name


def tensor_specs(
    selection: AttentionSelection, texts: Sequence[Text], *, half: bool
) -> Iterator[Spec]:
    """Yield the tensors of each text, then the tensors that span all texts."""
    for index, text in enumerate(texts):
        yield from text_specs(selection, index, text, half=half)
    if selection.ablates:
        yield Spec("pooled_shift", "float32", (len(texts),))
        if selection.targets:
            yield Spec("target_logprob_shift", "float32", (len(texts),))
    if "logprobs" in selection.include:
        targets = sum(Lengths.of(text).target for text in texts)
        yield Spec("target_logprobs", "float32", (targets,))


def text_specs(
    selection: AttentionSelection, index: int, text: Text, *, half: bool = False
) -> list[Spec]:
    """Return the tensors of one text, in the order of their computation."""
    dtype, lengths = "float16" if half else "float32", Lengths.of(text)
    weights, norms, stats = list[Spec](), list[Spec](), list[Spec]()
    for kind, (layers, heads) in selection.maps.items():
        prefix, maps = PREFIXES[kind], (len(layers), len(heads))
        shape = (*maps, *selection.part.shape(*lengths.shape(kind), text.picture))
        name = f"{prefix}attention.{index}"
        if selection.top_k is None:
            weights.append(Spec(name, dtype, shape))
        else:
            largest = (*shape[:-1], min(selection.top_k, shape[-1]))
            weights.append(Spec(f"{name}.indices", "int32", largest))
            weights.append(Spec(f"{name}.values", dtype, largest))
        norms.append(Spec(f"{prefix}norms.{index}", "float32", shape))
        names = (f"{prefix}stats.{index}.{name}" for name in STATISTICS_OF[kind])
        stats += [Spec(name, "float32", maps) for name in names]
    square = lengths.source, lengths.source
    rollouts = {
        name: [Spec(f"{name}.{index}", "float32", square)] for name in ("rollout", "norm_rollout")
    }
    arrays = {"weights": weights, "norms": norms, "stats": stats, **rollouts}
    return [spec for name, own in arrays.items() if name in selection.include for spec in own]


class Writer(ABC):
    """Writer that converts results to the parts of a reply, in order."""

    media_type: str
    length: int | None = None
    """Bytes of the whole reply, if known beforehand."""
    keeps_back: bool
    """Whether parts wait for later parts, so that the whole reply may be in memory."""

    def dump(self, weights: Floats) -> Weights:
        """Convert weights for `layer`; called in the thread that computed them."""
        return weights

    @abstractmethod
    def start(self) -> Sequence[Part | Unwritten]:
        """Return the parts before the first text."""

    @abstractmethod
    def layer(self, maps: LayerMaps) -> Sequence[Part | Unwritten]:
        """Return the parts of the next layer of a text."""

    def text(self, summary: TextSummary) -> Sequence[Part | Unwritten]:
        """Return the parts at the end of a text; none by default."""
        del summary
        return ()

    @abstractmethod
    def end(self) -> Sequence[Part | Unwritten]:
        """Return the parts at the end of the reply."""


class BinaryWriter(Writer):
    """Writer of a safetensors file whose tensors follow the order of computation.

    A tensor that is narrower than its successors (float16 weights before float32 statistics) is
    held back, so that each tensor stays aligned to its item size.
    """

    media_type = SAFETENSORS

    def __init__(self, envelope: Envelope, selection: AttentionSelection, *, half: bool) -> None:
        """Determine the layout of the file."""
        self._half, texts = half, envelope.texts
        self._texts = text_tensors(texts)
        for index, text in enumerate(texts):
            for name, places in part_places(selection, Lengths.of(text)).items():
                self._texts[tensor_of(name, index)] = places
        specs = aligned(
            [
                *(Spec(name, t.dtype.name, t.shape) for name, t in self._texts.items()),
                *tensor_specs(selection, texts, half=half),
            ]
        )
        self._head = safetensors_head(specs, envelope.metadata())
        self.length = len(self._head) + sum(spec.nbytes for spec in specs)
        keeps_weights = selection.top_k is not None or (half and not selection.only_weights)
        self.keeps_back = keeps_weights or selection.include >= {"weights", "norms"}
        self._due = deque((spec.name, spec.nbytes) for spec in specs)
        self._ready: dict[str, deque[Part]] = defaultdict(deque)
        self._shifts: dict[str, list[float]] = defaultdict(list)

    def dump(self, weights: Floats) -> Weights:
        """Return contiguous weights, rounded to float16 if requested."""
        return np.ascontiguousarray(float16_weights(weights) if self._half else weights)

    def start(self) -> list[Part]:
        """Return the header and the tensors of the texts."""
        for name, tensor in self._texts.items():
            self._ready[name].append(as_bytes(tensor))
        return [self._head, *self._in_order()]

    def layer(self, maps: LayerMaps) -> list[Part]:
        """Return the parts of a layer's maps."""
        return self._add(maps.text, maps.arrays)

    def text(self, summary: TextSummary) -> list[Part]:
        """Return the parts of a text's statistics, rollouts and log-probabilities."""
        return self._add(summary.text, summary.values)

    def end(self) -> list[Part]:
        """Return the tensors that span all texts."""
        for name, shifts in self._shifts.items():
            self._ready[name].append(_memory(np.array(shifts, np.float32)))
        return [*self._in_order()]

    def _add(self, text: int, values: Mapping[str, Array | float]) -> list[Part]:
        """Add arrays of a text, or numbers of which all texts have a tensor together."""
        for name, value in values.items():
            if isinstance(value, float):
                self._shifts[name].append(value)
            else:
                self._ready[tensor_of(name, text)].append(_memory(value))
        return [*self._in_order()]

    def _in_order(self) -> Iterator[Part]:
        """Yield the parts that can be sent now."""
        while self._due:
            name, missing = self._due[0]
            ready = self._ready[name]
            while ready and missing:
                missing -= len(ready[0])
                yield ready.popleft()
            if missing:
                self._due[0] = (name, missing)
                return
            self._due.popleft()


class JsonWriter(Writer):
    """Writer of JSON, with the members of each text in a fixed order."""

    media_type = JSON

    def __init__(self, envelope: Envelope, selection: AttentionSelection) -> None:
        self._envelope, self._selection = envelope, selection
        self.keeps_back = selection.top_k is not None or "norms" in selection.include
        self._open_name = ""
        """Name of the field whose layers were written last for the text; empty before the first."""
        self._kept: dict[str, list[Array]] = {}
        """Layers of fields that follow the weights."""

    def start(self) -> list[Part]:
        """Return the reply up to the list of results."""
        return [self._envelope.opening()]

    def layer(self, maps: LayerMaps) -> list[Unwritten]:
        """Return the weights of a layer of the text, and keep its other arrays."""
        pieces: list[Unwritten] = []
        for name, array in maps.arrays.items():
            field, _, member = name.partition(".")
            if field.endswith("norms") or member == "values":
                self._kept.setdefault(name, []).append(array)
            elif name == self._open_name:
                pieces.append(chain([b","], json_pieces(array)))
            else:
                opening = f',"{field}":' + ('{"indices":[' if member else "[")
                before = b"" if self._open_name else self._open(maps.text)
                pieces.append(
                    chain(self._closing(), [before + opening.encode()], json_pieces(array))
                )
                self._open_name = name
        return pieces

    def text(self, summary: TextSummary) -> list[Unwritten]:
        """Return the text's remaining members."""
        pieces = self._closing() if self._open_name else iter([self._open(summary.text)])
        members: dict[str, object] = {
            name: list_pieces(layers) for name, layers in self._kept.items()
        }
        members |= grouped(summary.values)
        self._open_name, self._kept = "", {}
        return [chain(pieces, [b","] if members else [], member_pieces(members), [b"}"])]

    def end(self) -> list[Part]:
        """Return the end of the results, and the usage."""
        return [self._envelope.closing()]

    def _open(self, index: int) -> bytes:
        text = self._envelope.texts[index]
        fields = text_fields(text) | grouped(part_places(self._selection, Lengths.of(text)))
        return (b"," if index else b"") + as_json(fields)[:-1]

    def _closing(self) -> Unwritten:
        """Return the end of the weights that were written last, if there are any."""
        name = self._open_name
        values = self._kept.pop(name.replace("indices", "values"), None)
        if values:
            return chain([b'],"values":'], list_pieces(values), [b"}"])
        return iter([b"]"] if name else [])


def tensor_of(name: str, text: int) -> str:
    """Return the name of a text's tensor in the binary form: `NAME.TEXT`, or `NAME.TEXT.MEMBER`.

    The log-probabilities of all texts are one tensor.
    """
    if name == "target_logprobs":
        return name
    field, dot, member = name.partition(".")
    return f"{field}.{text}{dot}{member}"


def _memory(array: NDArray[np.generic]) -> memoryview:
    return as_bytes(np.ascontiguousarray(array))
