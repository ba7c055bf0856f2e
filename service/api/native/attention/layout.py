"""Names, order and sizes of the tensors in a reply of /attention.

Notation: B texts, S_i tokens of text i and T_i of its target, T of all targets, k = min(top_k, keys
of a map); Q selected queries and K selected keys of a map, P maximum rows and columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from model.artifact.signature import MapKind
from service.api.wire.media import JSON_BYTES_PER_FLOAT, JSON_BYTES_PER_INDEX
from service.api.wire.safetensors import Spec
from service.inference.attention.map_parts import Places, bins, places
from service.inference.attention.maps import STATISTICS_OF
from service.inference.attention.selection import AttentionSelection, Lengths
from service.inference.tokenization.tokenized import TokenizedText

PREFIXES: Mapping[MapKind, str] = {"encoder": "", "decoder": "decoder_", "cross": "cross_"}
"""Kind of maps → prefix of the names `attention`, `norms` and `stats`."""


def json_bytes(selection: AttentionSelection, texts: Sequence[TokenizedText]) -> int:
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


def part_places(selection: AttentionSelection, lengths: Lengths) -> dict[str, Places]:
    """Return the places of a text's map parts by field name, prefixed with the kind of maps.

    `queries` `[Q]` and `keys` `[K]` are the requested token indices, non-negative. For pooled maps,
    `bins.queries` `[min(Q, P), 2]` and `bins.keys` `[min(K, P), 2]` hold the start and end of each
    row and column among these.
    """
    part, places_by_name = selection.part, dict[str, Places]()
    asked = {"queries": part.queries, "keys": part.keys}
    for kind in selection.maps:
        prefix, sizes = PREFIXES[kind], lengths.shape(kind)
        for (name, values), size in zip(asked.items(), sizes, strict=True):
            if values is not None:
                places_by_name[prefix + name] = places(values, size)
            if part.max_size is not None:
                wanted = size if values is None else len(values)
                places_by_name[f"{prefix}bins.{name}"] = bins(wanted, part.max_size)
    return places_by_name


def part_fields(selection: AttentionSelection, lengths: Lengths) -> dict[str, object]:
    """Return `part_places` as JSON fields of a text, with both bins as members of `bins`."""
    fields: dict[str, object] = {}
    bounds: dict[str, dict[str, Places]] = {}
    for name, values in part_places(selection, lengths).items():
        field, _, member = name.partition(".")
        if member:
            fields[field] = bounds.setdefault(field, {})
            bounds[field][member] = values
        else:
            fields[field] = values
    return fields


def part_tensors(
    selection: AttentionSelection, texts: Sequence[TokenizedText]
) -> dict[str, Places]:
    """Return `part_places` of all texts as tensors of the binary format, named by text index."""
    tensors = {}
    for index, own in enumerate(map(Lengths.of, texts)):
        for name, values in part_places(selection, own).items():
            field, dot, member = name.partition(".")
            tensors[f"{field}.{index}{dot}{member}"] = values
    return tensors


def tensor_specs(
    selection: AttentionSelection, texts: Sequence[TokenizedText], *, half: bool
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
    selection: AttentionSelection, index: int, text: TokenizedText, *, half: bool = False
) -> Iterator[Spec]:
    """Yield the tensors of one text, in the order of their computation."""
    dtype, lengths = "float16" if half else "float32", Lengths.of(text)
    part = {
        kind: selection.part.shape(*lengths.shape(kind), text.picture) for kind in selection.maps
    }
    for kind, (layers, heads) in selection.maps.items():
        name, maps = f"{PREFIXES[kind]}attention.{index}", (len(layers), len(heads))
        if "weights" in selection.include and selection.top_k is None:
            yield Spec(name, dtype, (*maps, *part[kind]))
        elif "weights" in selection.include:
            queries, keys = part[kind]
            largest = (*maps, queries, min(selection.top_k or 0, keys))
            yield Spec(f"{name}.indices", "int32", largest)
            yield Spec(f"{name}.values", dtype, largest)
    if "norms" in selection.include:
        for kind, (layers, heads) in selection.maps.items():
            shape = (len(layers), len(heads), *part[kind])
            yield Spec(f"{PREFIXES[kind]}norms.{index}", "float32", shape)
    if "stats" in selection.include:
        for kind, (layers, heads) in selection.maps.items():
            stats, maps = f"{PREFIXES[kind]}stats.{index}", (len(layers), len(heads))
            yield from (Spec(f"{stats}.{name}", "float32", maps) for name in STATISTICS_OF[kind])
    for name in ("rollout", "norm_rollout"):
        if name in selection.include:
            yield Spec(f"{name}.{index}", "float32", (lengths.source, lengths.source))
