"""Vectors of the graph for GPUs, computed on a CPU with its attention emulated."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from model.artifact.signature import PACKED_POOLINGS, Float
from model.encoder.encoder import Encoder
from model.export.emulation import emulated
from model.export.vectors_graph import export_vectors, obstacle
from model.numerics.batch import Batch
from model.runtimes.device_vectors import graph_sizes, packed_inputs

HALF = 0.02
"""Allowed difference in half precision, as a share of the largest value."""


def packed_vectors(
    encoder: Encoder, batch: Batch, pooling: Any, dtype: Float
) -> list[NDArray[np.float32]]:
    """Return pooled vectors `[B, H]` and unit vectors `[B, H]`.

    The vectors have to be the same with the sizes of a CUDA graph.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vectors.onnx"
        onnx.save_model(export_vectors(encoder, pooling, dtype), path)
        graph = emulated(path)
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    feed = packed_inputs(batch, encoder.config, names, last=pooling == "last")
    outputs: list[NDArray[np.float32]] = session.run(None, feed)
    options = graph_sizes(encoder.config.max_position_embeddings)
    sizes = next((sizes for sizes in options if sizes.hold(batch)), None)
    if sizes and batch.pixels is None:
        feed = packed_inputs(batch, encoder.config, names, last=pooling == "last", sizes=sizes)
        filled = session.run(None, feed)[0][: len(outputs[0])]
        atol = (1e-5 if dtype == "float32" else HALF) * np.abs(outputs[0]).max()
        np.testing.assert_allclose(filled, outputs[0], atol=atol, rtol=0)
    return outputs


def assert_packed_vectors_equal(
    encoder: Encoder, batch: Batch, last_states: list[NDArray[np.float32]]
) -> None:
    """Compare the graph's vectors in both precisions with a reference's last hidden states.

    Each text's `[S, H]` must come from another implementation than the encoder.
    """
    if obstacle(encoder.config, "mean"):
        return
    pooled = {
        "mean": [state.mean(axis=0) for state in last_states],
        "cls": [state[0] for state in last_states],
        "last": [state[-1] for state in last_states],
    }
    assert tuple(pooled) == PACKED_POOLINGS
    for dtype, pooling, share in (
        ("float32", "mean", 1e-5),
        ("float32", "last", 1e-5),
        ("float16", "mean", HALF),
        ("float16", "cls", HALF),
    ):
        expected = np.stack(pooled[pooling])
        vectors, units = packed_vectors(encoder, batch, pooling, dtype)
        largest = max(np.abs(state).max() for state in last_states)
        np.testing.assert_allclose(vectors, expected, atol=share * largest, rtol=0)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        np.testing.assert_allclose(units, vectors / lengths, atol=1e-6, rtol=0)
