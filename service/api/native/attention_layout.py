"""The tensors of a reply of /attention: their names, their order, and what they will weigh.

Notation: B texts, S_i tokens of text i and T_i of its target, T of all targets, k = min(top_k, keys
of a map).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from model.artifact.signature import MapKind
from service.api.media import JSON_BYTES_PER_FLOAT, JSON_BYTES_PER_INDEX
from service.api.safetensors import Spec
from service.inference.maps import STATISTICS_OF, AttentionSelection, Lengths

PREFIXES: Mapping[MapKind, str] = {"encoder": "", "decoder": "decoder_", "cross": "cross_"}
"""Of the names `attention` and `stats`, by the kind of maps."""


def json_bytes(selection: AttentionSelection, lengths: Sequence[Lengths]) -> int:
    """Bytes predicted for the JSON form, on the safe side."""
    total = 0
    for index, own in enumerate(lengths):
        for spec in text_specs(selection, index, own):
            each = JSON_BYTES_PER_INDEX if spec.dtype == "int32" else JSON_BYTES_PER_FLOAT
            total += spec.nbytes // np.dtype(spec.dtype).itemsize * each
        if selection.target and selection.target.logprobs:
            total += own.target * JSON_BYTES_PER_FLOAT
    return total


def tensor_specs(
    selection: AttentionSelection, lengths: Sequence[Lengths], *, half: bool
) -> Iterator[Spec]:
    """The tensors of each text, then those that span all texts."""
    for index, own in enumerate(lengths):
        yield from text_specs(selection, index, own, half=half)
    target = selection.target
    if selection.ablates:
        yield Spec("pooled_shift", "float32", (len(lengths),))
        if target:
            yield Spec("target_logprob_shift", "float32", (len(lengths),))
    if target and target.logprobs:
        yield Spec("target_logprobs", "float32", (sum(own.target for own in lengths),))


def text_specs(
    selection: AttentionSelection, index: int, lengths: Lengths, *, half: bool = False
) -> Iterator[Spec]:
    """The tensors of one text, in the order in which they are computed."""
    dtype = "float16" if half else "float32"
    for kind, (layers, heads) in selection.of_kinds.items():
        name, maps = f"{PREFIXES[kind]}attention.{index}", (len(layers), len(heads))
        queries, keys = lengths.shape(kind)
        if selection.weights and selection.top_k is None:
            yield Spec(name, dtype, (*maps, queries, keys))
        elif selection.weights:
            shape = (*maps, queries, min(selection.top_k or 0, keys))
            yield Spec(f"{name}.indices", "int32", shape)
            yield Spec(f"{name}.values", dtype, shape)
    if selection.norms:
        maps = (len(selection.layers), len(selection.heads))
        yield Spec(f"norms.{index}", "float32", (*maps, lengths.source, lengths.source))
    if selection.statistics:
        for kind, (layers, heads) in selection.of_kinds.items():
            stats, maps = f"{PREFIXES[kind]}stats.{index}", (len(layers), len(heads))
            yield from (Spec(f"{stats}.{name}", "float32", maps) for name in STATISTICS_OF[kind])
    if selection.rollout:
        yield Spec(f"rollout.{index}", "float32", (lengths.source, lengths.source))
    if selection.norm_rollout:
        yield Spec(f"norm_rollout.{index}", "float32", (lengths.source, lengths.source))
