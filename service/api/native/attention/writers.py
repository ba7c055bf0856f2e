"""Writers of /attention replies as JSON or safetensors, called as the maps are computed."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from model.artifact.signature import MapKind
from service.api.native.attention.layout import (
    PREFIXES,
    part_fields,
    part_tensors,
    tensor_specs,
)
from service.api.native.texts import Header, metadata, text_fields, text_tensors, usage
from service.api.wire.json_pieces import array_pieces, arrays_pieces, as_json, member_pieces
from service.api.wire.media import JSON, SAFETENSORS, Part, Unwritten
from service.api.wire.safetensors import Spec, aligned, as_bytes, float16_weights, safetensors_head
from service.engines.contract import Floats
from service.inference.attention.maps import LayerMaps, TextSummary, Weights
from service.inference.attention.selection import AttentionSelection, Lengths
from service.inference.tokenization.tokenized import TokenizedText


class Writer(Protocol):
    """Writer that converts results to the parts of a reply, in order."""

    media_type: str
    length: int | None
    """Bytes of the whole reply, if known beforehand."""
    keeps_back: bool
    """Whether parts wait for later parts, so that the whole reply may be in memory."""

    def dump(self, weights: Floats) -> Weights:
        """Convert weights for `layer`; called in the thread that computed them."""

    def start(self) -> Sequence[Part | Unwritten]:
        """Return the parts before the first text."""

    def layer(self, maps: LayerMaps) -> Sequence[Part | Unwritten]:
        """Return the parts of the next layer of a text."""

    def text(self, summary: TextSummary) -> Sequence[Part | Unwritten]:
        """Return the parts at the end of a text."""

    def end(self) -> Sequence[Part | Unwritten]:
        """Return the parts at the end of the reply."""


class BinaryWriter:
    """Writer of a safetensors file whose tensors follow the order of computation.

    A tensor that is narrower than its successors (float16 weights before float32 statistics) is
    held back, so that each tensor stays aligned to its item size.
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
        """Determine the layout of the file."""
        self._half = half
        self._texts = text_tensors(texts) | part_tensors(selection, texts)
        specs = aligned(
            [
                *(Spec(name, t.dtype.name, t.shape) for name, t in self._texts.items()),
                *tensor_specs(selection, texts, half=half),
            ]
        )
        self._head = safetensors_head(specs, metadata(header, texts))
        self.length: int | None = len(self._head) + sum(spec.nbytes for spec in specs)
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
        own = f"{PREFIXES[maps.kind]}attention.{maps.text}"
        if maps.weights is not None:
            self._ready[own].append(_memory(maps.weights))
        if maps.top is not None:
            for name, part in zip(("indices", "values"), maps.top, strict=True):
                self._ready[f"{own}.{name}"].append(_memory(part))
        if maps.norms is not None:
            self._ready[f"{PREFIXES[maps.kind]}norms.{maps.text}"].append(_memory(maps.norms))
        return [*self._in_order()]

    def text(self, summary: TextSummary) -> list[Part]:
        """Return the parts of a text's statistics, rollouts and log-probabilities."""
        for kind, found in summary.statistics.items():
            for name, values in found.items():
                own = f"{PREFIXES[kind]}stats.{summary.text}.{name}"
                self._ready[own].append(_memory(values))
        if summary.rollout is not None:
            self._ready[f"rollout.{summary.text}"].append(_memory(summary.rollout))
        if summary.norm_rollout is not None:
            self._ready[f"norm_rollout.{summary.text}"].append(_memory(summary.norm_rollout))
        for name, shift in _shifts(summary).items():
            self._shifts[name].append(shift)
        if summary.logprobs is not None:
            self._ready["target_logprobs"].append(_memory(summary.logprobs))
        return [*self._in_order()]

    def end(self) -> list[Part]:
        """Return the tensors that span all texts."""
        for name, shifts in self._shifts.items():
            self._ready[name].append(_memory(np.array(shifts, np.float32)))
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


class JsonWriter:
    """Writer of JSON, with the members of each text in a fixed order."""

    media_type = JSON
    length: int | None = None

    def __init__(
        self, header: Header, selection: AttentionSelection, texts: Sequence[TokenizedText]
    ) -> None:
        self._header, self._selection, self._texts = header, selection, texts
        self.keeps_back = selection.top_k is not None or "norms" in selection.include
        self._kind: MapKind | None = None
        """Kind of the maps written last for the text; None before the first."""
        self._values: list[Weights] = []
        self._norms: dict[MapKind, list[Floats]] = {}

    def dump(self, weights: Floats) -> Floats:
        """Return the weights themselves, which are written in turn."""
        return weights

    def start(self) -> list[Part]:
        """Return the reply up to the list of results."""
        return [as_json(self._header.names)[:-1] + b',"results":[']

    def layer(self, maps: LayerMaps) -> list[Unwritten]:
        """Return the weights of a layer of the text."""
        if maps.norms is not None:
            self._norms.setdefault(maps.kind, []).append(maps.norms)
        array = maps.weights if maps.top is None else maps.top[0]
        if array is None:
            return []
        if maps.kind == self._kind:
            before: Iterable[Part] = [b","]
        else:
            before = chain(self._closing(), [self._opening(maps)])
        if maps.top is not None:
            self._values.append(maps.top[1])
        self._kind = maps.kind
        return [chain(before, array_pieces(array))]

    def text(self, summary: TextSummary) -> list[Unwritten]:
        """Return the text's remaining members."""
        pieces = self._closing() if self._kind else iter([self._open(summary.text)])
        members = {
            **{
                f"{PREFIXES[kind]}norms": arrays_pieces(norms)
                for kind, norms in self._norms.items()
            },
            **{f"{PREFIXES[kind]}stats": found for kind, found in summary.statistics.items()},
            "rollout": summary.rollout,
            "norm_rollout": summary.norm_rollout,
            **_shifts(summary),
            "target_logprobs": summary.logprobs,
        }
        wanted = {name: value for name, value in members.items() if value is not None}
        self._kind, self._norms = None, {}
        return [chain(pieces, [b","] if wanted else [], member_pieces(wanted), [b"}"])]

    def end(self) -> list[Part]:
        """Return the end of the results, and the usage."""
        return [b'],"usage":' + as_json(usage(self._texts)) + b"}"]

    def _open(self, index: int) -> bytes:
        text = self._texts[index]
        fields = text_fields(text) | part_fields(self._selection, Lengths.of(text))
        return (b"," if index else b"") + as_json(fields)[:-1]

    def _opening(self, maps: LayerMaps) -> bytes:
        """Return the JSON up to the first layer of a kind of maps."""
        before = b"" if self._kind else self._open(maps.text)
        array = b"[" if maps.top is None else b'{"indices":['
        return before + f',"{PREFIXES[maps.kind]}attention":'.encode() + array

    def _closing(self) -> Unwritten:
        """Return the end of the current kind, if any of its layers was written."""
        values, self._values = self._values, []
        if values:
            return chain([b'],"values":'], arrays_pieces(values), [b"}"])
        return iter([b"]"] if self._kind else [])


def _shifts(summary: TextSummary) -> dict[str, float]:
    """Return the changes by the ablation, by field name."""
    shifts = {
        "pooled_shift": summary.pooled_shift,
        "target_logprob_shift": summary.logprob_shift,
    }
    return {name: value for name, value in shifts.items() if value is not None}


def _memory(array: NDArray[np.generic]) -> memoryview:
    return as_bytes(np.ascontiguousarray(array))
