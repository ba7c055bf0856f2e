"""Graphs of an artifact, against their signatures, torch and numpy."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from model.artifact.manifest import Artifact
from model.artifact.signature import OF_DECODER, GraphSignature, TensorSpec, hidden_state_name
from model.checkpoint import load_checkpoint
from model.config.decoder import DecoderConfig
from model.config.encoder import EmbeddingLayout, EncoderConfig, PatchLayout
from model.export.graphs import (
    Function,
    device_pooling,
    encoder_signature,
    grid_states,
    head_parameters,
    one_head_shapes,
    packed_states,
    signatures,
    task_signature,
    weightless_graphs,
)
from model.export.to_onnx import to_onnx
from model.families.registry import parse_config
from model.numerics.batch import Batch, Floats, pack, padded
from model.numerics.task_head import TaskConfig
from tests.model.checkpoints import TINY
from tests.model.numerics.test_batch import LAYERS

CONFIG = parse_config(TINY | {"model_type": "bert"})
L, N, H = 2, 3, 12


def axes_of(specs: tuple[TensorSpec, ...]) -> dict[str, tuple[int | str, ...]]:
    return {spec.name: spec.axes for spec in specs}


@pytest.mark.parametrize("lengths", [[1], [5, 2, 9], [7, 7]])
def test_a_batch_and_a_head_mask_feed_the_encoder(lengths: list[int]) -> None:
    texts = [(range(n), [0] * n) for n in lengths]
    mask = np.ones((len(lengths), L, N), np.float32)
    of_pictures = EmbeddingLayout(patches=PatchLayout(size=2, rows=1, columns=1))
    for config in (CONFIG, CONFIG.model_copy(update={"embeddings": of_pictures})):
        features = config.pixel_features
        batch = pack(texts, pixels=[np.ones((n, 12), np.float32) for n in lengths if features])
        check_inputs(config, batch, mask)
        specs = encoder_signature(config, "float16").inputs
        grids = padded(batch, 0) | {"head_mask": mask}
        assert {spec.name for spec in specs} == set(grids)
        for spec in specs:
            assert grids[spec.name].dtype == spec.dtype
            assert grids[spec.name].ndim == len(spec.axes)


def check_inputs(config: EncoderConfig, batch: Batch, mask: Floats) -> None:
    lengths = np.diff(batch.cu_seqlens)
    specs = encoder_signature(config).inputs
    sizes: dict[int | str, int] = {"tokens": int(sum(lengths)), "batch": len(lengths)}
    sizes["sequence"] = int(max(lengths))
    for spec, array in zip(specs, (*batch.inputs, mask), strict=True):
        assert array.shape == tuple(sizes.get(axis, axis) for axis in spec.axes), spec.name
        assert array.dtype == spec.dtype
    named = [name for name, array in vars(batch).items() if array is not None]
    assert [spec.name for spec in specs] == [*named, "head_mask"]


def test_a_signature_is_read_as_it_was_written() -> None:
    signature = weightless_graphs(CONFIG, "float16")["device_attention"].signature
    written = signature.model_dump_json()
    assert GraphSignature.model_validate_json(written) == signature
    with pytest.raises(ValidationError, match="bfloat16"):
        GraphSignature.model_validate_json(written.replace("float16", "bfloat16"))


@pytest.mark.parametrize(
    ("task", "rows"),
    [
        (TaskConfig(kind="sequence_classification", outputs=5, pooling="cls"), "vectors"),
        (TaskConfig(kind="token_classification", outputs=5, pooling="none"), "vectors"),
        (TaskConfig(kind="sparse", outputs=5, pooling="max"), 1),
    ],
)
def test_a_task_head_takes_rows(task: TaskConfig, rows: int | str) -> None:
    signature = task_signature(CONFIG, task)
    assert axes_of(signature.inputs) == {"rows": ("vectors", H)}
    assert axes_of(signature.outputs) == {"scores": (rows, 5)}


def test_a_decoder_has_these_names_types_and_axes() -> None:
    decoder = DecoderConfig(layers=LAYERS, start_token_id=0)
    found = signatures(CONFIG, "float16", decoder=decoder)
    assert set(found) - set(signatures(CONFIG, "float16")) == set(OF_DECODER)
    graph = found["decoder"]
    assert [(spec.name, spec.dtype, spec.axes) for spec in graph.inputs] == [
        ("input_ids", "int64", ("target_tokens",)),
        ("position_ids", "int64", ("target_tokens",)),
        ("padded_index", "int64", ("batch", "target_sequence")),
        ("packed_index", "int64", ("target_tokens",)),
        ("source_padded_index", "int64", ("batch", "sequence")),
        ("encoded", "float32", ("tokens", 4)),
        ("head_mask", "float32", ("batch", 2, 2)),
        ("cross_head_mask", "float32", ("batch", 2, 2)),
    ]
    names = ["decoder_state.0", "decoder_state.1", "decoder_state.2"]
    names += ["cross_query.0", "cross_query.1"]
    assert [spec.name for spec in graph.outputs] == names
    assert {(spec.dtype, spec.axes) for spec in graph.outputs} == {
        ("float16", ("target_tokens", 4))
    }
    rows, labels = found["logprobs"].inputs
    assert (rows.axes, labels.dtype) == (("vectors", 4), "int64")
    assert found["logprobs"].outputs[0].dtype == "float32"
    assert found["cross_attention"].inputs[2].axes == ("heads", 2, 4)
    for kind in ("decoder_value_norms", "cross_value_norms"):
        states, *_ = found[kind].inputs
        assert states.axes == ("keys", 4)
        assert found[kind].outputs[0].axes == ("keys", "heads", "heads")


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
        flat = packed_states(encoder, [{}, {}], *inputs)
        deep = packed_states(encoder, [{}, {}], *inputs, three_axes=True)
    assert [state.shape for state in deep] == [(5, 12)] * 3
    for one, other in zip(flat, deep, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def test_attention_biases_activations_and_norms_of_a_grid_are_fused(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, which the CPU computes: its fusions are CUDA's (`graph_transformer_utils.cc`)."""
    encoder = load_checkpoint(tiny_checkpoint)
    signature = encoder_signature(encoder.config, "float16")
    grid = Function(partial(grid_states, encoder, [{}, {}]), encoder=encoder)
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
