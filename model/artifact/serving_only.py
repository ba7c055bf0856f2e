"""Error message for features that an artifact exported with --serving-only lacks."""

from __future__ import annotations


def left_out(what: str) -> str:
    """Return one line for a client or an operator, with the remedy.

    Args:
        what: the feature that needs the omitted tensors, as a singular noun.

    """
    return (
        f"this artifact was exported with --serving-only, without the float32 weights that {what} "
        "needs: serve an export without --serving-only"
    )
