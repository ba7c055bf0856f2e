"""Current matrix-product rate of the machine, the limit to which shares refer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

ROWS = 512
"""Tokens of a batch."""
SIZES = (384, 1536)
"""Inner dimension and columns of the default encoder's largest product."""
BURSTS, BURST_SECONDS = 5, 0.06
Precision = Literal["fp32", "bf16", "int8"]
Product = Callable[[], object]


class Calibrator:
    """Matrix products in one precision, on `threads` threads at the same time.

    float32 runs in ONNX Runtime, bf16 and int8 in OpenVINO: the fastest engines for them here. The
    sizes are the encoder's hidden and intermediate size.
    """

    def __init__(self, precision: Precision, threads: int, sizes: tuple[int, int] = SIZES) -> None:
        if precision == "fp32":
            self._products, self._flop = onnxruntime_products(threads, sizes)
        else:
            from benchmarks.harness.calibrate_openvino import openvino_products

            self._products, self._flop = openvino_products(precision, threads, sizes)

    def flop_per_second(self) -> float:
        """Return the best rate of a few short bursts on all threads together."""
        return max(self._burst() for _ in range(BURSTS))

    def _burst(self) -> float:
        counts = []
        started = time.perf_counter()

        def work(product: Product) -> None:
            count = 0
            while time.perf_counter() < started + BURST_SECONDS:
                product()
                count += 1
            counts.append(count)

        threads = [threading.Thread(target=work, args=(product,)) for product in self._products]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts) * self._flop / (time.perf_counter() - started)


def onnxruntime_products(threads: int, sizes: tuple[int, int]) -> tuple[list[Product], float]:
    """Return a function for each thread that computes one product, and the product's FLOP."""
    inner, columns = sizes
    weight = np.random.default_rng(0).random(sizes, np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, inner])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [ROWS, columns])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 10
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feed = {"x": np.random.default_rng(1).random((ROWS, inner), np.float32)}
    return [lambda: session.run(None, feed)] * threads, 2.0 * ROWS * inner * columns
