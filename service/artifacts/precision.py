"""Support of precisions by this machine's processor."""

from __future__ import annotations

from model.config.precision import Precision
from model.runtimes.registry import has_products

_CPU = "CPUExecutionProvider"


def precision_note(precision: Precision, provider: str | None = None) -> str | None:
    """Return a note if the processor lacks fast instructions for a precision, else None.

    `provider` is None if it is not known yet.
    """
    if precision == "fp16" and provider == _CPU:
        return "fp16 is for a GPU: on this processor fp32 is likely faster"
    if has_products(precision):
        return None
    return f"no fast {precision} products on this processor: fp32 is likely faster"
