"""Detection and order of attention weights among a foreign graph's outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model.errors import ConfigError
from model.export.foreign_attentions import attentions, row_sums_off

EVEN = np.full((2, 4, 3, 3), 1 / 3, np.float32)
STATES = np.ones((2, 3, 8), np.float32)
CACHE = np.ones((2, 4, 3, 2), np.float32)


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (["attentions.10", "attentions.2"], ["attentions.2", "attentions.10"]),
        (["attention_1", "attention_0"], ["attention_0", "attention_1"]),
        (["layer.1.softmax", "layer.0.softmax"], ["layer.0.softmax", "layer.1.softmax"]),
        (["b", "a"], ["b", "a"]),
        (["x1", "y1"], ["x1", "y1"]),
        (["191", "57"], ["57", "191"]),
    ],
)
def test_layers_are_in_order(names: list[str], order: list[str]) -> None:
    found: dict[str, Any] = {"last_hidden_state": STATES, "past": CACHE, "flat": np.ones(2)}
    found |= dict.fromkeys(names, EVEN) | {"key.5": np.ones((2, 4, 3, 3), np.float32)}
    specs = attentions(found, "a.onnx")
    assert [spec.name for spec in specs] == order
    assert {spec.axes for spec in specs} == {("batch", 4, "sequence", "sequence")}
    assert attentions({"last_hidden_state": STATES}, "a.onnx") == ()


def test_half_precision() -> None:
    (spec,) = attentions({"attention_0": EVEN.astype(np.float16)}, "a.onnx")
    assert spec.dtype == "float16"


@pytest.mark.parametrize(
    ("found", "part"),
    [
        ({"attentions.0": EVEN, "attentions.1": 2 * EVEN}, r"output attentions\.1 is called"),
        ({"attn_0": CACHE}, "no rows that sum to 1"),
        ({"attention_0": EVEN * np.float32(np.nan)}, "no rows that sum to 1"),
        ({"a0": EVEN, "a1": EVEN[:, :2]}, r"\(a0, a1\) are of layers with .* heads \(2, 4\)"),
    ],
)
def test_refusals(found: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError, match=part) as failed:
        attentions(found, "a.onnx")
    assert str(failed.value).startswith("a.onnx: its ")
    assert "\n" not in str(failed.value)


def test_how_far_sums_are_off() -> None:
    assert row_sums_off(EVEN) < 1e-6
    assert row_sums_off(EVEN * np.float32(1.25)) == pytest.approx(0.25, abs=1e-6)
    assert row_sums_off(np.array([[-0.5, 1.5]])) == float("inf")
