"""The two forms of a reply of /attention, written as its maps are computed.

Notation: B texts, S_i tokens of text i, k = min(top_k, S_i).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import orjson

from service.api.native.forms import (
    JSON,
    SAFETENSORS,
    Header,
    metadata,
    names,
    text_fields,
    text_tensors,
    usage,
)
from service.api.safetensors import Spec, aligned, as_bytes, safetensors_head
from service.inference.maps import Ending, Kept, MapsAsked, Part
from service.inference.statistics import STATISTICS
from service.inference.tokenizer import TokenizedText

JSON_BYTES_PER_WEIGHT = 15
"""Of a float32 with its comma (measured: up to 14.1 for the maps of one head)."""
JSON_BYTES_PER_INDEX = 6


class BinaryWriter:
    """A safetensors file whose tensors come in the order in which they are computed.

    Where one that is narrower than its successors comes first (float16 weights before float32
    statistics), it is kept back, so that each stays aligned to its own item size.
    """

    media_type = SAFETENSORS

    def __init__(self, header: Header, asked: MapsAsked, texts: Sequence[TokenizedText]) -> None:
        self._texts = text_tensors(texts)
        lengths = [len(text.input_ids) for text in texts]
        specs = aligned(
            [
                *(Spec(name, t.dtype.name, t.shape) for name, t in self._texts.items()),
                *(spec for i, s in enumerate(lengths) for spec in _specs(asked, i, s)),
                *([Spec("pooled_shift", "float32", (len(texts),))] if asked.ablated else []),
            ]
        )
        self._head = safetensors_head(specs, metadata(header, texts))
        self.length: int | None = len(self._head) + sum(spec.nbytes for spec in specs)
        self.keeps_back = asked.top_k is not None or (asked.half and not asked.only_weights)
        self._due = deque((spec.name, spec.nbytes) for spec in specs)
        self._ready: dict[str, deque[Part]] = defaultdict(deque)
        self._shifts: list[float] = []

    def dump(self, array: Any) -> Part:
        """Its own memory."""
        return as_bytes(np.ascontiguousarray(array))

    def start(self) -> list[Part]:
        """The head, and what is known of the texts."""
        for name, tensor in self._texts.items():
            self._ready[name].append(as_bytes(tensor))
        return [self._head, *self._in_order()]

    def layer(self, index: int, kept: Kept) -> list[Part]:
        """A layer's share of the text's weights."""
        if kept.weights is not None:
            self._ready[f"attention.{index}"].append(kept.weights)
        if kept.top is not None:
            for name, part in zip(("indices", "values"), kept.top, strict=True):
                self._ready[f"attention.{index}.{name}"].append(part)
        return [*self._in_order()]

    def text(self, index: int, ending: Ending) -> list[Part]:
        """Its statistics and its rollout."""
        for name, values in ending.statistics.items():
            self._ready[f"stats.{index}.{name}"].append(self.dump(values))
        if ending.rollout is not None:
            self._ready[f"rollout.{index}"].append(self.dump(ending.rollout))
        if ending.pooled_shift is not None:
            self._shifts.append(ending.pooled_shift)
        return [*self._in_order()]

    def end(self) -> list[Part]:
        """What spans all texts."""
        self._ready["pooled_shift"].append(self.dump(np.array(self._shifts, np.float32)))
        return [*self._in_order()]

    def _in_order(self) -> Iterator[Part]:
        """What can be sent now."""
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
    """It is not known before the end."""

    def __init__(self, header: Header, asked: MapsAsked, texts: Sequence[TokenizedText]) -> None:
        self._header, self._asked, self._texts = header, asked, texts
        self.keeps_back = asked.top_k is not None
        self._layers = 0
        self._values: list[Part] = []

    def dump(self, array: Any) -> Part:
        """As JSON."""
        return _dumps(array)

    def start(self) -> list[Part]:
        """Up to the list of results."""
        return [_dumps(names(self._header))[:-1] + b',"results":[']

    def layer(self, index: int, kept: Kept) -> list[Part]:
        """A layer's share of the text's weights."""
        weights = kept.weights if kept.top is None else kept.top[0]
        if weights is None:
            return []
        opening = b"," if self._layers else self._open(index) + self._opening()
        self._layers += 1
        if kept.top is not None:
            self._values += [b"," if self._values else b"", kept.top[1]]
        return [opening, weights]

    def text(self, index: int, ending: Ending) -> list[Part]:
        """Its other members."""
        parts: list[Part] = [] if self._layers else [self._open(index)]
        if self._values:
            parts += [b'],"values":[', *self._values, b"]}"]
        elif self._layers:
            parts.append(b"]")
        members = {
            "stats": ending.statistics or None,
            "rollout": ending.rollout,
            "pooled_shift": ending.pooled_shift,
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
        return b',"attention":[' if self._asked.top_k is None else b',"attention":{"indices":['


def json_bytes(asked: MapsAsked, lengths: Sequence[int]) -> int:
    """About how long the JSON will be, on the safe side."""
    total = 0
    for index, length in enumerate(lengths):
        for spec in _specs(asked, index, length):
            each = JSON_BYTES_PER_INDEX if spec.dtype == "int32" else JSON_BYTES_PER_WEIGHT
            total += spec.nbytes // np.dtype(spec.dtype).itemsize * each
    return total


def _specs(asked: MapsAsked, index: int, length: int) -> Iterator[Spec]:
    """The tensors of one text."""
    maps = (len(asked.layers), len(asked.heads))
    dtype = "float16" if asked.half else "float32"
    if asked.weights and asked.top_k is None:
        yield Spec(f"attention.{index}", dtype, (*maps, length, length))
    elif asked.weights:
        shape = (*maps, length, min(asked.top_k or 0, length))
        yield Spec(f"attention.{index}.indices", "int32", shape)
        yield Spec(f"attention.{index}.values", dtype, shape)
    if asked.statistics:
        yield from (Spec(f"stats.{index}.{name}", "float32", maps) for name in STATISTICS)
    if asked.rollout:
        yield Spec(f"rollout.{index}", "float32", (length, length))


def _dumps(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
