"""Message of what an artifact that was exported with --serving-only lacks."""

from __future__ import annotations


def left_out(what: str) -> str:
    """Return one line for a client or an operator, with the remedy.

    Args:
        what: needs the tensors that are left out, as a noun in the singular.

    """
    return (
        f"this artifact was exported with --serving-only, without the float32 weights that {what} "
        "needs: serve an export without --serving-only"
    )
