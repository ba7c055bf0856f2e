"""The machine's matrix-product rate right now: what a share of the limit is a share of."""

from __future__ import annotations

import threading
import time

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

ROWS, INNER, COLUMNS, REPEATS = 512, 384, 1536, 12
FLOP_PER_TOKEN = 21.23e6
"""Of all-MiniLM-L6-v2's matrix products: 6 · (4·384² + 2·384·1536) multiply-adds, twice."""
FLOP_PER_TOKEN_PAIR = 9216
"""Of its attention: 6 layers · 2 products · 384 features, twice."""


def workload_flop(lengths: list[int]) -> float:
    """What texts of these lengths cost without any padding."""
    return sum(n * (FLOP_PER_TOKEN + FLOP_PER_TOKEN_PAIR * n) for n in lengths)


class Calibrator:
    """float32 products of the encoder's largest shape, one thread a core, all at once."""

    def __init__(self, threads: int) -> None:
        weight = np.random.default_rng(0).random((INNER, COLUMNS), np.float32)
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            "product",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, INNER])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [ROWS, COLUMNS])],
            [onnx.numpy_helper.from_array(weight, "w")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
        model.ir_version = 10
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self._feed = {"x": np.random.default_rng(1).random((ROWS, INNER), np.float32)}
        self._threads = threads

    def flop_per_second(self) -> float:
        """The best of a few short bursts on all threads together."""
        return max(self._burst() for _ in range(5))

    def _burst(self) -> float:
        def work() -> None:
            for _ in range(REPEATS):
                self._session.run(None, self._feed)

        threads = [threading.Thread(target=work) for _ in range(self._threads)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - started
        return 2.0 * ROWS * INNER * COLUMNS * REPEATS * self._threads / seconds
