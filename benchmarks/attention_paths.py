"""Three ways to compute every attention map of one text, side by side.

    recompute     one encoder graph with all hidden states, and a small graph that recomputes the
                  requested heads' weights from the hidden state that enters a layer
    layer stack   one graph a layer: hidden state in, next hidden state and all maps out
    whole graph   a second encoder graph with every map as an output

Run: python -m benchmarks.attention_paths [--rounds N]. One thread, runs taken in turn, medians.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from benchmarks.harness.report import write_json
from benchmarks.harness.service import default_artifact
from benchmarks.harness.timing import in_turn, median_ratio
from model.artifact.manifest import WEIGHTS, Artifact
from model.artifact.signature import GraphSignature, TensorSpec
from model.checkpoint import load_weights
from model.encoder.encoder import Encoder
from model.export.graphs import encoder_signature
from model.export.to_onnx import save_graph, to_onnx
from model.numerics.batch import Batch, pack
from model.packing import PackedBatch
from model.runtimes.capabilities import capability
from model.runtimes.contract import Heads
from model.runtimes.onnx import OnnxRuntime
from testing.memory import MEBIBYTE, memory_bytes

LENGTHS = (16, 64, 128, 256, 512)
NAMES = ("input_ids", "token_type_ids", "position_ids", "padded_index", "packed_index")
Way = Callable[[Batch], list[np.ndarray]]


class WholeGraph(nn.Module):
    """Module from token ids to the last hidden state and every map."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        output = self.encoder(PackedBatch(*inputs), output_attentions=True)
        return (output.hidden_states[-1], *output.attentions)


class OneLayer(nn.Module):
    """Module from a hidden state and its packing to the next hidden state and the layer's maps."""

    def __init__(self, encoder: Encoder, layer: int) -> None:
        super().__init__()
        self.layer = encoder.layers[layer]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        hidden, padded_index, packed_index = inputs
        ids = packed_index  # a layer reads only the two indices
        batch = PackedBatch(ids, ids, ids, padded_index, packed_index)
        return self.layer(hidden, batch, None, {}), self.layer.maps(hidden, batch, {})


class Embed(nn.Module):
    """Module from token ids to hidden state 0."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.embeddings = encoder.embeddings

    def forward(self, *inputs: Tensor) -> Tensor:
        ids = inputs[0]  # BERT's embeddings do not read the two indices
        return self.embeddings(PackedBatch(*inputs, ids, ids))


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def export_whole_graph(encoder: Encoder, folder: Path) -> None:
    config = encoder.config
    maps = ("batch", config.num_attention_heads, "sequence", "sequence")
    outputs = [TensorSpec(name="hidden", dtype="float32", axes=("tokens", config.hidden_size))]
    outputs += [
        TensorSpec(name=f"attention.{i}", dtype="float32", axes=maps)
        for i in range(config.num_hidden_layers)
    ]
    signature = GraphSignature(inputs=encoder_signature(config).inputs, outputs=tuple(outputs))
    graph = to_onnx(WholeGraph(encoder), signature)
    save_graph(graph, folder / "w.onnx", "w.data")


def export_layer_stack(encoder: Encoder, folder: Path) -> None:
    config = encoder.config
    *ids, padded_index, packed_index = encoder_signature(config).inputs
    hidden = TensorSpec(name="hidden", dtype="float32", axes=("tokens", config.hidden_size))
    after = hidden.model_copy(update={"name": "next"})
    maps = TensorSpec(
        name="attention",
        dtype="float32",
        axes=("batch", config.num_attention_heads, "sequence", "sequence"),
    )
    signature = GraphSignature(inputs=tuple(ids), outputs=(hidden,))
    graph = to_onnx(Embed(encoder), signature)
    save_graph(graph, folder / "e.onnx", "e.data")
    signature = GraphSignature(inputs=(hidden, padded_index, packed_index), outputs=(after, maps))
    for i in range(config.num_hidden_layers):
        graph = to_onnx(OneLayer(encoder, i), signature)
        save_graph(graph, folder / f"l{i}.onnx", f"l{i}.data")


def encoder_alone(artifact: Artifact, _: Path) -> Way:
    onnx = OnnxRuntime(artifact)
    return lambda batch: onnx.hidden_states(batch, [onnx.config.num_hidden_layers])


def recompute_one(artifact: Artifact, _: Path) -> Way:
    onnx = OnnxRuntime(artifact)
    last = onnx.config.num_hidden_layers - 1

    def run(batch: Batch) -> list[np.ndarray]:
        (states,) = onnx.hidden_states(batch, [last])
        return [capability(onnx, Heads).attention(states, states, last, [0])]

    return run


def recompute_all(artifact: Artifact, _: Path) -> Way:
    onnx = OnnxRuntime(artifact)
    layers, heads = (range(onnx.config.num_hidden_layers), range(onnx.config.num_attention_heads))

    def run(batch: Batch) -> list[np.ndarray]:
        states = onnx.hidden_states(batch, layers)
        return [capability(onnx, Heads).attention(states[i], states[i], i, heads) for i in layers]

    return run


def layer_stack(artifact: Artifact, folder: Path) -> Way:
    embed = session(folder / "e.onnx")
    count = artifact.manifest.config.num_hidden_layers
    layers = [session(folder / f"l{i}.onnx") for i in range(count)]

    def run(batch: Batch) -> list[np.ndarray]:
        feed = vars(batch)
        state = embed.run(None, {name: feed[name] for name in NAMES[:3]})[0]
        indices = {name: feed[name] for name in NAMES[3:]}
        maps = []
        for layer in layers:
            state, weights = layer.run(None, {"hidden": state, **indices})
            maps.append(weights[0])
        return maps

    return run


def encoder_and_whole_graph(artifact: Artifact, folder: Path) -> Way:
    onnx = OnnxRuntime(artifact)
    graph = session(folder / "w.onnx")
    count = onnx.config.num_hidden_layers
    onnx.hidden_states(batch_of(max(LENGTHS)), [count])  # counted in: a service runs both graphs
    names = [f"attention.{i}" for i in range(count)]
    return lambda batch: [weights[0] for weights in graph.run(names, vars(batch))]


WAYS: dict[str, Callable[[Artifact, Path], Way]] = {
    "encoder alone": encoder_alone,
    "recompute, one head": recompute_one,
    "recompute, all": recompute_all,
    "layer stack, all": layer_stack,
    "whole graph, all": encoder_and_whole_graph,
}


def peak_mebibytes(name: str, folder: Path) -> float:
    """Return this process's peak memory (MiB) after one run of a way on each length.

    Call it in a fresh process.
    """
    way = WAYS[name](default_artifact(), folder)
    for length in LENGTHS:
        way(batch_of(length))
    return memory_bytes("self", "VmHWM") / MEBIBYTE


def batch_of(length: int) -> Batch:
    ids = np.random.default_rng(length).integers(1000, 20000, length)
    return pack([(ids, np.zeros_like(ids))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    artifact = default_artifact()
    encoder = load_weights(artifact.path(WEIGHTS), artifact.manifest.config)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        export_layer_stack(encoder, folder)
        export_whole_graph(encoder, folder)
        ways = {name: load(artifact, folder) for name, load in WAYS.items()}
        check(encoder, ways)
        table = {length: measure(ways, batch_of(length), options.rounds) for length in LENGTHS}
        peaks = {name: in_fresh_process(name, folder) for name in WAYS}
    print(f"{'S':>5}" + "".join(f"{name:>22}" for name in WAYS))
    for length, ratios in table.items():
        print(f"{length:>5}" + "".join(f"{ratios[name]:>22.3f}" for name in WAYS))
    print(f"{'MiB':>5}" + "".join(f"{peaks[name]:>22.0f}" for name in WAYS))
    print("medians of multiples of the encoder alone in the same round, one thread; peak memory")
    if options.json:
        write_json(options.json, {"ratios": table, "peak_mib": peaks})


def check(encoder: Encoder, ways: dict[str, Way]) -> None:
    """Compare the maps of each way that computes all of them with PyTorch's.

    Raises:
        SystemExit: a weight differs by more than 1e-5.

    """
    batch = batch_of(64)
    with torch.inference_mode():
        expected = encoder(PackedBatch.of(batch), output_attentions=True)
    for name, way in ways.items():
        if name.endswith("all"):
            pairs = zip(way(batch), expected.attentions, strict=True)
            worst = max(float(np.abs(found - want[0].numpy()).max()) for found, want in pairs)
            if worst > 1e-5:
                raise SystemExit(f"{name} is wrong by {worst}")


def measure(ways: dict[str, Way], batch: Batch, rounds: int) -> dict[str, float]:
    """Return each way's time as a multiple of the encoder alone, the median over the rounds."""
    calls = {name: functools.partial(way, batch) for name, way in ways.items()}
    seconds = in_turn(calls, rounds)
    base = seconds["encoder alone"]
    return {name: median_ratio(found, base) for name, found in seconds.items()}


def in_fresh_process(name: str, folder: Path) -> float:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(peak_mebibytes, name, folder).result()


if __name__ == "__main__":
    main()
