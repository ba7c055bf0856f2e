"""Graphs of an artifact, against their signatures, torch and numpy."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file

from model.artifact.manifest import Artifact
from model.artifact.signature import encoder_signature, hidden_state_name
from model.checkpoint import load_checkpoint
from model.export.graphs import (
    GridStates,
    HiddenStates,
    device_pooling,
    head_parameters,
    one_head_shapes,
)
from model.export.to_onnx import to_onnx
from model.families.registry import parse_config
from model.numerics.batch import pack
from tests.model.checkpoints import TINY


def test_the_graphs_match_their_signature(tiny_artifact: Artifact) -> None:
    for name, signature in tiny_artifact.manifest.signature.items():
        graph = onnx.load(tiny_artifact.path(f"{name}.onnx"), load_external_data=False).graph
        for specs, values in ((signature.inputs, graph.input), (signature.outputs, graph.output)):
            assert [spec.name for spec in specs] == [value.name for value in values]
            for spec, value in zip(specs, values, strict=True):
                dims = value.type.tensor_type.shape.dim
                assert list(spec.axes) == [dim.dim_param or dim.dim_value for dim in dims]
                assert spec.dtype == {1: "float32", 7: "int64"}[value.type.tensor_type.elem_type]


def test_the_configs_attention_decides_the_parameters_of_a_head() -> None:
    """Shapes of one head of size p = 4 over H = 12 features, written out."""
    projections = {"query_weight": (4, 12), "query_bias": (4,), "key_weight": (4, 12)}
    projections["key_bias"] = (4,)
    own: dict[str, dict[str, tuple[int, ...]]] = {
        "scaled_dot_product": {},
        "cosine": {},
        "bilinear": {"score_weight": (4, 4), "score_bias": ()},
        "additive": {
            "score_query_weight": (4, 4),
            "score_key_weight": (4, 4),
            "score_vector": (4,),
        },
    }
    for score, parameters in own.items():
        config = parse_config(TINY | {"model_type": "bert", "attention_score": score})
        assert one_head_shapes(config) == projections | parameters


def test_heads_parameters_are_named_by_layer_and_heads_come_first(tiny_checkpoint: Path) -> None:
    stored = load_file(tiny_checkpoint / "model.safetensors")
    found = head_parameters(load_checkpoint(tiny_checkpoint))
    of_roles = {
        f"{role}_{kind}" for role in ("query", "key", "value") for kind in ("weight", "bias")
    }
    names = {*of_roles, "output_weight"}
    assert found.keys() == {f"{name}.{layer}" for name in names for layer in range(2)}
    for name, tensor in found.items():
        role, kind, layer = re.split("[_.]", name)
        if role == "output":
            theirs = stored[f"encoder.layer.{layer}.attention.output.dense.weight"]
            assert torch.equal(torch.cat([*tensor], dim=1), theirs)
            continue
        theirs = stored[f"encoder.layer.{layer}.attention.self.{role}.{kind}"]
        assert torch.equal(tensor.flatten(), theirs.flatten())
        assert tensor.shape[:2] == (3, 4)


def test_three_axes_give_the_same_hidden_states(tiny_checkpoint: Path) -> None:
    encoder = load_checkpoint(tiny_checkpoint)
    batch = pack([([2, 9, 3], [0, 0, 1]), ([2, 3], [0, 0])])
    inputs = (*map(torch.from_numpy, batch.inputs), torch.ones(2, 2, 3))
    with torch.inference_mode():
        flat = HiddenStates(encoder, [{}, {}], three_axes=False)(*inputs)
        deep = HiddenStates(encoder, [{}, {}], three_axes=True)(*inputs)
    assert [state.shape for state in deep] == [(5, 12)] * 3
    for one, other in zip(flat, deep, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def test_attention_biases_activations_and_norms_of_a_grid_are_fused(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, which the CPU computes: its fusions are CUDA's (`graph_transformer_utils.cc`)."""
    encoder = load_checkpoint(tiny_checkpoint)
    signature = encoder_signature(encoder.config, "float16")
    grid = GridStates(encoder, [{}, {}]).eval()
    monkeypatch.delattr("model.export.torch_exporter._traced_again")
    graph = to_onnx(grid, signature, to_fuse=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(graph.SerializeToString(), options)
    nodes = onnx.load(tmp_path / "optimized.onnx", load_external_data=False).graph.node
    operators = Counter(node.op_type for node in nodes)
    assert operators["SkipLayerNormalization"] == 1 + 2 * 2  # the embeddings' norm, two a layer
    assert operators["BiasGelu"] == operators["Attention"] == 2
    assert not {"Gemm", "LayerNormalization", "Gelu", "Softmax", "Transpose"} & set(operators)
    made_by = {name: node.op_type for node in nodes for name in node.output}
    states = {made_by[hidden_state_name(layer)] for layer in range(3)}
    assert states == {"SkipLayerNormalization"}  # no reshaped output, which would be copied


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_sets_of_rows_are_pooled_as_numpy_does(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    state = torch.randn(10, 8).to(dtype)
    first, count = [0, 4, 9, 2, 7], [4, 5, 1, 3, 2]
    maximum, weight, unit = [0, 1, 0, 0, 0], [0, 0, 0, 0, 3], [0, 0, 8, 3, 0]
    sets = [torch.tensor(values) for values in (first, count, range(5), maximum, weight, unit)]
    found = device_pooling(state, *sets).numpy()
    assert found.dtype == np.float32
    rows = state.float().numpy()
    mean = rows[2:5].mean(axis=0)
    np.testing.assert_allclose(found[0], rows[:4].mean(axis=0), atol=1e-6)
    np.testing.assert_array_equal(found[1], rows[4:9].max(axis=0))
    np.testing.assert_allclose(found[2], rows[9] / np.linalg.norm(rows[9]), atol=1e-6)
    np.testing.assert_allclose(found[3, :3], mean[:3] / np.linalg.norm(mean[:3]), atol=1e-6)
    np.testing.assert_allclose(found[4], (3 * rows[7] + 4 * rows[8]) / 7, atol=1e-6)
