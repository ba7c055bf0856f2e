"""The first tensor, in order of computation, at which a verification failed."""

from __future__ import annotations

from collections.abc import Mapping

from model.artifact.bounds import Check
from model.artifact.compare import Comparison, Key, Kind, Tolerance

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
"""Part of the model and place within a layer, in order of computation."""
_NAMES: Mapping[Kind, str] = {
    "hidden": "hidden state {layer}",
    "attention": "attention of layer {layer}, head {head}",
    "values": "what the heads of layer {layer} add",
    "pooled": "pooled vector",
    "decoder_hidden": "decoder state {layer}",
    "decoder_attention": "attention of decoder layer {layer}, head {head}",
    "decoder_values": "what the heads of decoder layer {layer} add",
    "cross_queries": "query states of cross-attention in layer {layer}",
    "cross_attention": "cross-attention of layer {layer}, head {head}",
    "cross_values": "what the heads of cross-attention of layer {layer} add",
    "logprobs": "log-probabilities",
}
_CHECKS: Mapping[Check, str] = {
    "": "",
    "text": " of a text",
    "alone": " of a text in a batch, compared with the same text alone",
}


def first_failure(comparison: Comparison, tolerances: Mapping[Kind, Tolerance]) -> str:
    """One line of a comparison that failed: where it began, and how far off it was there.

    Args:
        comparison: with a mismatch, or with a difference beyond tolerance.
        tolerances: that it was held to.

    """
    if comparison.mismatches:
        first, *more = comparison.mismatches
        return f"{first}, and {len(more)} more mismatches" if more else first
    failed = [key for key, found in comparison.differences.items() if not found.passed]
    key = min(failed, key=_order)
    found, tolerance = comparison.differences[key], key.tolerance(tolerances)
    limit = f"{tolerance.atol:g}"
    if tolerance.rtol:
        limit += f" + {tolerance.rtol:g} of the largest value"
    return (
        f"{len(failed)} of {len(comparison.differences)} tensors, first {_place(key)}: "
        f"max abs diff {found.max_abs_diff:.1e} (at most {limit}), "
        f"min cosine {found.min_cosine:.6f} (at least {tolerance.cosine_at_least:g})"
    )


def _order(key: Key) -> tuple[int, int, int, int]:
    """A layer's input comes before its heads, and all layers before what is made of the last."""
    part, place = _PLACES[key.kind]
    return part, key.layer, place, key.head


def _place(key: Key) -> str:
    form = _NAMES.get(key.kind)
    if not form:
        return str(key)
    return form.format(layer=key.layer, head=key.head) + _CHECKS[key.check]
