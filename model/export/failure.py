"""First tensor, in order of computation, at which a verification failed."""

from __future__ import annotations

from collections.abc import Mapping

from model.numerics.bounds import Check
from model.numerics.comparison import Comparison, Key, Kind, Tolerance

_PLACES: Mapping[Kind, tuple[int, int]] = {
    "hidden": (0, 0),
    "attention": (0, 1),
    "values": (0, 2),
    "pooled": (1, 0),
    "task": (1, 0),
    "token_vectors": (1, 0),
    "decoder_hidden": (2, 0),
    "decoder_attention": (2, 1),
    "decoder_values": (2, 2),
    "cross_queries": (2, 3),
    "cross_attention": (2, 4),
    "cross_values": (2, 5),
    "logprobs": (3, 0),
}
"""Kind of tensor → part of the model and position within a layer, in order of computation."""
_NAMES: Mapping[Kind, str] = {
    "hidden": "hidden state {layer}",
    "attention": "attention of layer {layer}, head {head}",
    "values": "vectors added by the heads of layer {layer}",
    "pooled": "pooled vector",
    "decoder_hidden": "decoder state {layer}",
    "decoder_attention": "attention of decoder layer {layer}, head {head}",
    "decoder_values": "vectors added by the heads of decoder layer {layer}",
    "cross_queries": "query states of cross-attention in layer {layer}",
    "cross_attention": "cross-attention of layer {layer}, head {head}",
    "cross_values": "vectors added by the cross-attention heads of layer {layer}",
    "logprobs": "log-probabilities",
}
_CHECKS: Mapping[Check, str] = {
    "": "",
    "text": " of a text",
    "alone": " of a text in a batch, compared with the same text alone",
}


def first_failure(comparison: Comparison, tolerances: Mapping[Kind, Tolerance]) -> str:
    """Return one line about a failed comparison: the first failing tensor and its difference."""
    if comparison.mismatches:
        first, *others = comparison.mismatches
        return f"{first}, and {len(others)} more mismatches" if others else first
    failed = [key for key, difference in comparison.differences.items() if not difference.passed]
    key = min(failed, key=_order)
    difference, tolerance = comparison.differences[key], key.tolerance(tolerances)
    limit = f"{tolerance.atol:g}"
    if tolerance.rtol:
        limit += f" + {tolerance.rtol:g} of the largest value"
    return (
        f"{len(failed)} of {len(comparison.differences)} tensors, first {_place(key)}: "
        f"max abs diff {difference.max_abs_diff:.1e} (at most {limit}), "
        f"min cosine {difference.min_cosine:.6f} (at least {tolerance.cosine_at_least:g})"
    )


def _order(key: Key) -> tuple[int, int, int, int]:
    """Return a sort key: a layer's input before its heads, all layers before later outputs."""
    part, place = _PLACES[key.kind]
    return part, key.layer, place, key.head


def _place(key: Key) -> str:
    form = _NAMES.get(key.kind)
    if not form:
        return str(key)
    return form.format(layer=key.layer, head=key.head) + _CHECKS[key.check]
