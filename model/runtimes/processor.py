"""Properties of the processor for OpenVINO, found by computing instead of by its name.

Without VNNI, AMX or the like, x86 multiplies 8-bit integers by VPMADDUBSW, which adds two products
in 16 bits: 2 · 255 · 127 exceeds 32767, and the sum silently saturates. Weights of 7 bits cannot
reach that: 2 · 255 · 63 = 32130. A list of the processor's instructions does not show which of
them OpenVINO uses, or that ONEDNN_MAX_CPU_ISA disables some; a computed product does.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from model.errors import ModelError

try:
    import openvino
    from openvino import opset13 as ops
except ImportError as error:
    raise ModelError(f"this artifact is for OpenVINO, which cannot be imported: {error}") from None

_INNER, _OUTPUTS = 64, 16
_ENOUGH = 0.99
"""Minimum ratio of a product to the exact one; where products saturate it is 0.506."""


@functools.cache
def core() -> openvino.Core:
    """Return OpenVINO, with its plugins loaded once."""
    return openvino.Core()


@functools.cache
def saturates() -> bool:
    """Return whether products with 8-bit weights saturate; True if the result is unclear."""
    exact = 255 * 127 * _INNER
    return not (_largest_product() >= _ENOUGH * exact).all()


@functools.cache
def computes_bfloat16() -> bool:
    """Return whether the processor computes products in bfloat16; if not, float32 replaces them.

    Every processor with bfloat16 products has 8-bit products that do not saturate.
    """
    return "BF16" in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES") and not saturates()


def _largest_product() -> NDArray[np.float32]:
    """Return the product of 255s and 127s, `[1, p]`, by the kernels of int8 artifacts."""
    low, high = np.float32(0), np.float32(255)
    x = ops.parameter([1, _INNER], np.float32)
    quantized = ops.fake_quantize(x, low, high, low, high, 256)
    weight = ops.convert(ops.constant(np.full((_INNER, _OUTPUTS), 127, np.int8)), "f32")
    scale = ops.constant(np.ones((1, _OUTPUTS), np.float32))
    product = ops.matmul(quantized, ops.multiply(weight, scale), False, False)
    properties = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": 1,
        "ENABLE_CPU_PINNING": False,
    }
    compiled = core().compile_model(openvino.Model([product], [x]), "CPU", properties)
    return np.array(compiled(np.full((1, _INNER), 255, np.float32))[0])
