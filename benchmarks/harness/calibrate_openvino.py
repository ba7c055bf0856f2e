"""Matrix products in bf16 and int8, as fast as this machine has them.

A chain of products, so that turning the input into the precision, and the output out of it, cost
next to nothing: with a single int8 product they take as long as the product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops

ROWS, INNER, COLUMNS, PRODUCTS = 512, 384, 1536, 12
KERNELS = {"bf16": "bf16", "int8": "i8"}
"""What the name of a kernel ends in that computes in the precision."""


def openvino_products(precision: str, threads: int) -> tuple[list[Callable[[], object]], float]:
    """A function a thread that computes the chain, and the cost of one.

    Raises:
        SystemExit: this machine does not compute in that precision.

    """
    core, model = openvino.Core(), chain(precision)
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
        values = np.random.default_rng(1).uniform(-1, 1, (ROWS, INNER)).astype(np.float32)
        request.set_input_tensor(openvino.Tensor(values))
    return [request.infer for request in requests], PRODUCTS * 2.0 * ROWS * INNER * COLUMNS


def chain(precision: str) -> Any:
    """The products of a feed-forward network again and again: up to COLUMNS, and down again."""
    state = source = ops.parameter([ROWS, INNER], np.float32)
    for number in range(PRODUCTS):
        shape = (COLUMNS, INNER) if number % 2 == 0 else (INNER, COLUMNS)
        if precision == "int8":
            state = ops.fake_quantize(state, *map(ops.constant, RANGE), 256)
        state = ops.matmul(state, weight(shape, precision), transpose_a=False, transpose_b=True)
    return openvino.Model([state], [source])


RANGE = tuple(np.float32(bound) for bound in (-1.28, 1.27, -1.28, 1.27))
"""Of an int8 activation: least and most in, least and most out."""


def weight(shape: tuple[int, int], precision: str) -> Any:
    """[outputs, inputs]; int8 with a scale an output."""
    generator = np.random.default_rng(0)
    if precision == "int8":
        values = ops.constant(generator.integers(-127, 128, shape).astype(np.int8))
        scales = ops.constant(np.full((shape[0], 1), 0.001, np.float32))
        return ops.multiply(ops.convert(values, "f32"), scales)
    return ops.constant(generator.uniform(-0.05, 0.05, shape).astype(np.float32))


def check_kernels(compiled: Any, precision: str) -> None:
    """Every product ran in the precision, or what is measured would be another's limit."""
    request = compiled.create_infer_request()
    request.infer({0: np.zeros((ROWS, INNER), np.float32)})
    kernels = [
        info.exec_type.lower()
        for info in request.get_profiling_info()
        if info.node_type.startswith("FullyConnected")
    ]
    if len(kernels) != PRODUCTS or not all(k.endswith(KERNELS[precision]) for k in kernels):
        raise SystemExit(f"no {precision} products on this machine: {sorted(set(kernels))}")
