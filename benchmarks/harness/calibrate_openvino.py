"""Matrix products in bf16 and int8, as fast as this machine computes them.

The products form a chain, so that converting the input to the precision and the output back costs
next to nothing: around a single int8 product the conversions take as long as the product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops

ROWS, PRODUCTS = 512, 12
KERNELS = {"bf16": "bf16", "int8": "i8"}
"""Suffix of the names of kernels that compute in each precision."""


def openvino_products(
    precision: str, threads: int, sizes: tuple[int, int]
) -> tuple[list[Callable[[], object]], float]:
    """Return a function for each thread that computes the chain, and the chain's FLOP.

    Raises:
        SystemExit: this machine does not compute in that precision.

    """
    inner, columns = sizes
    core, model = openvino.Core(), chain(precision, *sizes)
    options: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": "bf16",
        "NUM_STREAMS": threads,
        "INFERENCE_NUM_THREADS": threads,
        "ENABLE_CPU_PINNING": False,
    }
    check_kernels(core.compile_model(model, "CPU", {**options, "PERF_COUNT": True}), precision)
    compiled = core.compile_model(model, "CPU", options)
    requests = [compiled.create_infer_request() for _ in range(threads)]
    for request in requests:
        values = np.random.default_rng(1).uniform(-1, 1, (ROWS, inner)).astype(np.float32)
        request.set_input_tensor(openvino.Tensor(values))
    return [request.infer for request in requests], PRODUCTS * 2.0 * ROWS * inner * columns


def chain(precision: str, inner: int, columns: int) -> Any:
    """Return a model of a feed-forward network's products, repeated: to `columns` and back."""
    state = source = ops.parameter([ROWS, inner], np.float32)
    for number in range(PRODUCTS):
        shape = (columns, inner) if number % 2 == 0 else (inner, columns)
        if precision == "int8":
            state = ops.fake_quantize(state, *map(ops.constant, RANGE), 256)
        state = ops.matmul(state, weight(shape, precision), transpose_a=False, transpose_b=True)
    return openvino.Model([state], [source])


RANGE = tuple(np.float32(bound) for bound in (-1.28, 1.27, -1.28, 1.27))
"""Range of an int8 activation: minimum and maximum of the input, then of the output."""


def weight(shape: tuple[int, int], precision: str) -> Any:
    """Return a weight `[outputs, inputs]`; int8 has one scale for each output."""
    generator = np.random.default_rng(0)
    if precision == "int8":
        values = ops.constant(generator.integers(-127, 128, shape).astype(np.int8))
        scales = ops.constant(np.full((shape[0], 1), 0.001, np.float32))
        return ops.multiply(ops.convert(values, "f32"), scales)
    return ops.constant(generator.uniform(-0.05, 0.05, shape).astype(np.float32))


def check_kernels(compiled: Any, precision: str) -> None:
    """Check that every product ran in the precision.

    Raises:
        SystemExit: a kernel computes in another precision, whose limit would be measured instead.

    """
    request = compiled.create_infer_request()
    request.infer({0: np.zeros(compiled.input(0).shape, np.float32)})
    kernels = [
        info.exec_type.lower()
        for info in request.get_profiling_info()
        if info.node_type.startswith("FullyConnected")
    ]
    if len(kernels) != PRODUCTS or not all(k.endswith(KERNELS[precision]) for k in kernels):
        raise SystemExit(f"no {precision} products on this machine: {sorted(set(kernels))}")
