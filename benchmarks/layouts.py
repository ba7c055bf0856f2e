"""Time of the packed encoder graph with two axes and with three, on both runtimes, in turn.

Run: python -m benchmarks.layouts [--rounds N]

The same batch of texts goes through each graph on one thread: `[T, H]` against `[1, T, H]`, and
all texts packed against the same texts padded to the longest (each as long as the longest, which
is what a padded graph computes).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import openvino
from tokenizers import Tokenizer

from benchmarks.harness.service import default_artifact
from benchmarks.harness.timing import Call, in_turn
from model.artifact.manifest import TOKENIZER, WEIGHTS
from model.checkpoint import load_weights
from model.encoder.encoder import Encoder
from model.export.calibration import calibration_batches
from model.export.graphs import export_encoder
from model.export.quantization import quantize
from model.numerics.batch import Batch, pack

LENGTHS = (62, 60, 58, 55, 52, 50)
NAMES = (
    "input_ids",
    "token_type_ids",
    "position_ids",
    "padded_index",
    "packed_index",
    "head_mask",
)
LAYERS, HEADS = 6, 12


def batch_of(lengths: tuple[int, ...]) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    texts = [(generator.integers(1000, 20000, n), np.zeros(n)) for n in lengths]
    batch: Batch = pack(texts)
    mask = np.ones((len(texts), LAYERS, HEADS), np.float32)
    return dict(zip(NAMES, (*batch.inputs, mask), strict=True))


def on_onnxruntime(graph: onnx.ModelProto, feed: dict[str, np.ndarray]) -> Call:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        graph.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    last = session.get_outputs()[-1].name
    return lambda: session.run([last], feed)


def on_openvino(graph: onnx.ModelProto, feed: dict[str, np.ndarray]) -> Call:
    properties = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.onnx"
        onnx.save_model(graph, path)
        request = openvino.Core().compile_model(str(path), "CPU", properties).create_infer_request()
    return lambda: request.infer(feed, share_inputs=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    artifact = default_artifact()
    encoder = load_weights(artifact.path(WEIGHTS), artifact.manifest.config)
    tokenizer = Tokenizer.from_file(str(artifact.path(TOKENIZER)))
    batches = calibration_batches(tokenizer, artifact.manifest.sentence.max_length)
    int8 = quantize(encoder, batches).encoder
    packed, padded = batch_of(LENGTHS), batch_of((max(LENGTHS),) * len(LENGTHS))
    ways: dict[str, Call] = {}
    runs: tuple[tuple[str, Encoder, Callable[..., Call]], ...] = (
        ("fp32 on ONNX Runtime", encoder, on_onnxruntime),
        ("bf16 on OpenVINO", encoder, on_openvino),
        ("int8 on OpenVINO", int8, on_openvino),
    )
    for name, module, load in runs:
        for three_axes in (False, True):
            graph = export_encoder(module, three_axes=three_axes)
            ways[f"{name}, {2 + three_axes} axes"] = load(graph, packed)
        ways[f"{name}, 3 axes, padded"] = load(graph, padded)
    for name, seconds in in_turn(ways, options.rounds, warm_up=2).items():
        median, least = 1000 * statistics.median(seconds), 1000 * min(seconds)
        print(f"{name:<34} {median:6.1f} ms (least {least:.1f})")


if __name__ == "__main__":
    main()
