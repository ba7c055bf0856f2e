"""int8 graphs on ONNX Runtime, against numpy's formula and torch's fake quantization."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from model.artifact.manifest import Artifact
from model.artifact.signature import GraphSignature, TensorSpec
from model.checkpoint import load_checkpoint
from model.encoder.encoder import Encoder
from model.export.graphs import export_encoder
from model.export.quantization import Int8Linear, quantize
from model.export.to_onnx import to_onnx
from model.numerics.batch import Batch
from tests.model.export.test_quantization import CALIBRATION, MAPS, int8_maps, run, transformers_of
from tests.model.runtimes.test_onnx import batch_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def encoder(tiny_checkpoint: Path) -> Encoder:
    return load_checkpoint(tiny_checkpoint)


@pytest.fixture(scope="module")
def quantized(encoder: Encoder) -> Encoder:
    return quantize(encoder, CALIBRATION).encoder


def feed_of(batch: Batch) -> dict[str, np.ndarray]:
    mask = np.ones((len(batch.padded_index), 2, 3), np.float32)
    names = [name for name, array in vars(batch).items() if array is not None]
    return dict(zip(names, batch.inputs, strict=True)) | {"head_mask": mask}


def session_of(graph: onnx.ModelProto, *, plain: bool = True) -> onnxruntime.InferenceSession:
    """Load a graph on ONNX Runtime; `plain` computes each operator without fusion."""
    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_DISABLE_ALL if plain else levels.ORT_ENABLE_ALL
    return onnxruntime.InferenceSession(
        graph.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


NAMES = ("attention.key", "attention.output", "feed_forward.contract")


class Beside(nn.Module):
    """Several maps side by side as one graph."""

    def __init__(self, maps: Sequence[Int8Linear]) -> None:
        super().__init__()
        self.maps = nn.ModuleList(maps)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(linear(x) for linear, x in zip(self.maps, inputs, strict=True))


@pytest.fixture(scope="module")
def maps(quantized: Encoder) -> dict[str, Int8Linear]:
    of_all = int8_maps(quantized)
    return {name: of_all[f"layers.1.{name}"] for name in NAMES}


@pytest.fixture(scope="module")
def graph(maps: dict[str, Int8Linear]) -> onnx.ModelProto:
    """Return the graph of the maps, each from an input to an output with its name."""
    sizes = {name: one.weight.shape for name, one in maps.items()}
    specs = [
        tuple(TensorSpec(name=f"{way} {n}", dtype="float32", axes=("rows", k)) for n, k in each)
        for way, each in (
            ("from", [(name, d) for name, (d, _) in sizes.items()]),
            ("to", [(name, p) for name, (_, p) in sizes.items()]),
        )
    ]
    example = tuple(torch.zeros(3, d) for d, _ in sizes.values())
    signature = GraphSignature(inputs=specs[0], outputs=specs[1])
    return to_onnx(Beside(list(maps.values())), signature, example=example)


@pytest.mark.parametrize("name", NAMES)
def test_an_exported_map_is_its_formula(
    maps: dict[str, Int8Linear], graph: onnx.ModelProto, name: str
) -> None:
    """q = clip(round(x / s) + z, 0, 255), y = (q − z) s · Wᵀ + b; outliers are clipped."""
    module = maps[name]
    x = np.random.default_rng(0).standard_normal((50, module.weight.shape[0])).astype(np.float32)
    x[:5] *= 100
    scale, zero = np.float32(module.scale.item()), int(module.zero)
    smoothed = x if module.divisor is None else x * module.divisor.numpy()
    q = np.clip(np.rint(smoothed / scale) + zero, 0, 255)
    assert {0, 255} <= set(q[:5].flatten())
    w = module.weight.double().numpy() * module.weight_scale.double().numpy()
    expected = (q - zero) * np.float64(scale) @ w + module.bias.double().numpy()

    types = [node.op_type for node in graph.graph.node]
    assert types.count("QuantizeLinear") == len(NAMES)
    assert types.count("DequantizeLinear") == 2 * len(NAMES)
    feed = {f"from {one}": np.zeros((50, maps[one].weight.shape[0]), np.float32) for one in NAMES}
    for plain in (True, False):
        session = session_of(graph, plain=plain)
        (found,) = session.run([f"to {name}"], feed | {f"from {name}": x})
        np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-5)


def faked(module: Int8Linear, linear: nn.Linear) -> Callable[[Tensor], Tensor]:
    """Compute the map by torch's own fake quantization of the float32 map."""
    scale, zero, bias = module.scale.item(), int(module.zero), linear.bias
    divisor = torch.ones(1) if module.divisor is None else module.divisor
    zeros = torch.zeros_like(bias, dtype=torch.int32)
    weight = torch.fake_quantize_per_channel_affine(
        linear.weight.detach() / divisor, module.weight_scale, zeros, 0, -127, 127
    )

    def forward(x: Tensor) -> Tensor:
        x = torch.fake_quantize_per_tensor_affine(x * divisor, scale, zero, 0, 255)
        return nn.functional.linear(x, weight, bias)

    return forward


def test_the_int8_graph_equals_transformers_with_torchs_fake_quantization(
    quantized: Encoder, tiny_checkpoint: Path
) -> None:
    reference, batch = transformers_of(tiny_checkpoint), batch_of([11, 1, 40, 6], seed=5)
    exact = run(reference, batch)
    for name, module in int8_maps(quantized).items():
        _, layer, *ours = name.split(".")
        linear = reference.encoder.layer[int(layer)].get_submodule(MAPS[".".join(ours)])
        linear.forward = faked(module, linear)
    expected = run(reference, batch)
    session = session_of(export_encoder(quantized, three_axes=True))
    (found,) = session.run(["hidden_state.2"], feed_of(batch))
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert np.abs(found - exact).max() > 1e-3  # eight bits are not thirty-two
    cosine = torch.cosine_similarity(torch.tensor(found), torch.tensor(exact))
    assert cosine.min() > 0.98


def test_the_artifacts_graph_holds_8_bit_weights(tiny_int8: Artifact) -> None:
    graph = onnx.load(tiny_int8.path("encoder.onnx"), load_external_data=False).graph
    int8 = [item for item in graph.initializer if item.data_type == onnx.TensorProto.INT8]
    assert len(int8) == 2 * 6
    quantizing = [node for node in graph.node if node.op_type == "QuantizeLinear"]
    assert {node.domain for node in graph.node} == {""}
    assert len(quantizing) >= 2 * 4
