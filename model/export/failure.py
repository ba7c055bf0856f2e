"""The first tensor, in order of computation, at which a verification failed."""

from __future__ import annotations

from collections.abc import Mapping

from model.artifact.compare import Comparison, Key, Kind, Tolerance


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
    found, tolerance = comparison.differences[key], tolerances[key.kind]
    limit = f"{tolerance.atol:g}"
    if tolerance.rtol:
        limit += f" + {tolerance.rtol:g} of the largest value"
    return (
        f"{len(failed)} of {len(comparison.differences)} tensors, first {_place(key)}: "
        f"max abs diff {found.max_abs_diff:.1e} (at most {limit}), "
        f"min cosine {found.min_cosine:.6f} (at least {tolerance.cosine_at_least:g})"
    )


def _order(key: Key) -> tuple[bool, int, bool, int]:
    """A layer's input comes before its heads, and both before what is made of the last state."""
    whole = key.kind not in ("hidden", "attention")
    return whole, key.layer, key.kind == "attention", key.head


def _place(key: Key) -> str:
    match key.kind:
        case "hidden":
            return f"hidden state {key.layer}"
        case "attention":
            return f"attention of layer {key.layer}, head {key.head}"
        case "pooled":
            return "pooled vector"
    return str(key)
