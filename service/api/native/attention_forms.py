"""The JSON and the binary form of a reply of /attention, written as its maps are computed.

Notation: B texts, S_i tokens of text i, k = min(top_k, S_i).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import orjson

from service.api.media import JSON, JSON_BYTES_PER_FLOAT, JSON_BYTES_PER_INDEX, SAFETENSORS, Part
from service.api.native.texts import Header, metadata, text_fields, text_tensors, usage
from service.api.safetensors import Spec, aligned, as_bytes, float16_weights, safetensors_head
from service.inference.maps import AttentionSelection, LayerMaps, TextSummary
from service.inference.statistics import STATISTICS
from service.inference.tokenizer import TokenizedText


class Writer(Protocol):
    """Turns results into the parts of a reply, in order."""

    media_type: str
    length: int | None
    """Bytes of the whole reply, where they are known beforehand."""
    keeps_back: bool
    """Whether parts wait for later ones, so that all of the reply may be in memory."""

    def dump(self, array: Any) -> Part:
        """Weights or indices as they will be sent; called in the thread that computed them."""

    def start(self) -> list[Part]:
        """The parts before the first text."""

    def layer(self, maps: LayerMaps) -> list[Part]:
        """The next layer of a text."""

    def text(self, summary: TextSummary) -> list[Part]:
        """The end of a text."""

    def end(self) -> list[Part]:
        """The end of the reply."""


class BinaryWriter:
    """A safetensors file whose tensors come in the order in which they are computed.

    Where one that is narrower than its successors comes first (float16 weights before float32
    statistics), it is kept back, so that each stays aligned to its own item size.
    """

    media_type = SAFETENSORS

    def __init__(
        self,
        header: Header,
        selection: AttentionSelection,
        texts: Sequence[TokenizedText],
        *,
        half: bool,
    ) -> None:
        """Lay out the file.

        Args:
            header: the reply's fields above the results.
            selection: the wanted parts of the maps.
            texts: the request's.
            half: whether weights are float16.

        """
        self._half = half
        self._texts = text_tensors(texts)
        lengths = [len(text.input_ids) for text in texts]
        specs = aligned(
            [
                *(Spec(name, t.dtype.name, t.shape) for name, t in self._texts.items()),
                *(
                    spec
                    for i, s in enumerate(lengths)
                    for spec in _specs(selection, i, s, half=half)
                ),
                *([Spec("pooled_shift", "float32", (len(texts),))] if selection.ablated else []),
            ]
        )
        self._head = safetensors_head(specs, metadata(header, texts))
        self.length: int | None = len(self._head) + sum(spec.nbytes for spec in specs)
        self.keeps_back = selection.top_k is not None or (half and not selection.only_weights)
        self._due = deque((spec.name, spec.nbytes) for spec in specs)
        self._ready: dict[str, deque[Part]] = defaultdict(deque)
        self._shifts: list[float] = []

    def dump(self, array: Any) -> Part:
        """An array's own memory; weights rounded to float16 where asked for."""
        if self._half and array.dtype == np.float32:
            array = float16_weights(array)
        return _memory(array)

    def start(self) -> list[Part]:
        """The head, and the tensors of the texts."""
        for name, tensor in self._texts.items():
            self._ready[name].append(as_bytes(tensor))
        return [self._head, *self._in_order()]

    def layer(self, maps: LayerMaps) -> list[Part]:
        """A layer's share of the text's weights."""
        if maps.weights is not None:
            self._ready[f"attention.{maps.text}"].append(maps.weights)
        if maps.top is not None:
            for name, part in zip(("indices", "values"), maps.top, strict=True):
                self._ready[f"attention.{maps.text}.{name}"].append(part)
        return [*self._in_order()]

    def text(self, summary: TextSummary) -> list[Part]:
        """Its statistics and its rollout."""
        for name, values in summary.statistics.items():
            self._ready[f"stats.{summary.text}.{name}"].append(_memory(values))
        if summary.rollout is not None:
            self._ready[f"rollout.{summary.text}"].append(_memory(summary.rollout))
        if summary.pooled_shift is not None:
            self._shifts.append(summary.pooled_shift)
        return [*self._in_order()]

    def end(self) -> list[Part]:
        """The tensor that spans all texts."""
        self._ready["pooled_shift"].append(_memory(np.array(self._shifts, np.float32)))
        return [*self._in_order()]

    def _in_order(self) -> Iterator[Part]:
        """The parts that can be sent now."""
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


class JsonWriter:
    """JSON, each text's members in a fixed order."""

    media_type = JSON
    length: int | None = None

    def __init__(
        self, header: Header, selection: AttentionSelection, texts: Sequence[TokenizedText]
    ) -> None:
        self._header, self._selection, self._texts = header, selection, texts
        self.keeps_back = selection.top_k is not None
        self._layers = 0
        self._values: list[Part] = []

    def dump(self, array: Any) -> Part:
        """An array as JSON."""
        return _dumps(array)

    def start(self) -> list[Part]:
        """Up to the list of results."""
        return [_dumps(self._header.names)[:-1] + b',"results":[']

    def layer(self, maps: LayerMaps) -> list[Part]:
        """A layer's share of the text's weights."""
        weights = maps.weights if maps.top is None else maps.top[0]
        if weights is None:
            return []
        opening = b"," if self._layers else self._open(maps.text) + self._opening()
        self._layers += 1
        if maps.top is not None:
            self._values += [b"," if self._values else b"", maps.top[1]]
        return [opening, weights]

    def text(self, summary: TextSummary) -> list[Part]:
        """Its other members."""
        parts: list[Part] = [] if self._layers else [self._open(summary.text)]
        if self._values:
            parts += [b'],"values":[', *self._values, b"]}"]
        elif self._layers:
            parts.append(b"]")
        members = {
            "stats": summary.statistics or None,
            "rollout": summary.rollout,
            "pooled_shift": summary.pooled_shift,
        }
        for name, value in members.items():
            if value is not None:
                parts += [b',"' + name.encode() + b'":', _dumps(value)]
        self._layers, self._values = 0, []
        return [*parts, b"}"]

    def end(self) -> list[Part]:
        """The rest."""
        return [b'],"usage":' + _dumps(usage(self._texts)) + b"}"]

    def _open(self, index: int) -> bytes:
        return (b"," if index else b"") + _dumps(text_fields(self._texts[index]))[:-1]

    def _opening(self) -> bytes:
        return b',"attention":[' if self._selection.top_k is None else b',"attention":{"indices":['


def json_bytes(selection: AttentionSelection, lengths: Sequence[int]) -> int:
    """Bytes predicted for the JSON form, on the safe side."""
    total = 0
    for index, length in enumerate(lengths):
        for spec in _specs(selection, index, length):
            each = JSON_BYTES_PER_INDEX if spec.dtype == "int32" else JSON_BYTES_PER_FLOAT
            total += spec.nbytes // np.dtype(spec.dtype).itemsize * each
    return total


def _specs(
    selection: AttentionSelection, index: int, length: int, *, half: bool = False
) -> Iterator[Spec]:
    """The tensors of one text."""
    maps = (len(selection.layers), len(selection.heads))
    dtype = "float16" if half else "float32"
    if selection.weights and selection.top_k is None:
        yield Spec(f"attention.{index}", dtype, (*maps, length, length))
    elif selection.weights:
        shape = (*maps, length, min(selection.top_k or 0, length))
        yield Spec(f"attention.{index}.indices", "int32", shape)
        yield Spec(f"attention.{index}.values", dtype, shape)
    if selection.statistics:
        yield from (Spec(f"stats.{index}.{name}", "float32", maps) for name in STATISTICS)
    if selection.rollout:
        yield Spec(f"rollout.{index}", "float32", (length, length))


def _dumps(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def _memory(array: Any) -> memoryview:
    return as_bytes(np.ascontiguousarray(array))
