"""Warning about a precision that is slow on this processor, and only then."""

from __future__ import annotations

import pytest

from model.config.precision import Precision
from service.artifacts.precision import precision_note


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8"])
@pytest.mark.parametrize("fast", [True, False])
def test_products_that_are_missing(
    precision: Precision, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.runtimes.processor.saturates", lambda: not fast)
    monkeypatch.setattr("model.runtimes.processor.computes_bfloat16", lambda: fast)
    said = f"no fast {precision} products on this processor: fp32 is likely faster"
    expected = None if fast or precision in ("fp32", "fp16") else said
    assert precision_note(precision) == expected


def test_half_precision_is_for_a_gpu() -> None:
    assert precision_note("fp16", "CUDAExecutionProvider") is None
    said = "fp16 is for a GPU: on this processor fp32 is likely faster"
    assert precision_note("fp16", "CPUExecutionProvider") == said
    assert precision_note("fp32", "CPUExecutionProvider") is None
