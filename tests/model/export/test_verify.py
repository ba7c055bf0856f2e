"""Verification compares each tensor, which PyTorch and the graphs name alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load_file, save_file

from model.artifact.manifest import Artifact, Manifest, load_artifact, record_file, write_manifest
from model.errors import CheckpointError
from model.export.samples import Sample
from model.export.verify import Verification, report, verify
from model.numerics.comparison import Difference, Key

HIDDEN = {Key("hidden", layer) for layer in range(3)}
MAPS = {Key("attention", layer, head) for layer in range(2) for head in range(3)}
POOLED = {Key("pooled")}
VALUES = {Key("values", layer) for layer in (0, 1)}
AFTER_LAYER_0 = {key for key in HIDDEN if key.layer} | {key for key in MAPS | VALUES if key.layer}
AFTER_LAYER_0 |= POOLED


def verified(folder: Path) -> Verification:
    """Verify a folder, after updating its manifest to match its current files."""
    manifest = load_manifest(folder)
    files = {name: record_file(folder / name) for name in manifest.files}
    write_manifest(folder, manifest.model_copy(update={"files": files}))
    return verify(load_artifact(folder))


def load_manifest(folder: Path) -> Manifest:
    return Manifest.model_validate_json((folder / "manifest.json").read_bytes())


def failed_keys(result: Verification) -> set[Key]:
    differences = result.comparison.differences.items()
    return {key for key, difference in differences if not difference.passed}


def edit_tensor(path: Path, name: str, edit: Callable[[torch.Tensor], object]) -> None:
    tensors = load_file(path)
    edit(tensors[name])
    save_file(tensors, path)


def edit_graph(path: Path, edit: Callable[[onnx.GraphProto], object]) -> None:
    model = onnx.load(path, load_external_data=False)
    edit(model.graph)
    onnx.save_model(model, path)


def test_a_good_artifact_passes_on_every_tensor(tiny_artifact: Artifact) -> None:
    result = verify(tiny_artifact)
    assert result.record().passed
    assert result.comparison.mismatches == []
    assert set(result.comparison.differences) == HIDDEN | MAPS | VALUES | POOLED
    for difference in result.comparison.differences.values():
        assert difference.max_abs_diff < 1e-5
        assert difference.min_cosine == pytest.approx(1, abs=1e-6)


def test_the_record_is_the_one_in_the_manifest(tiny_artifact: Artifact) -> None:
    result = verify(tiny_artifact)
    record = result.record()
    assert record == tiny_artifact.manifest.verification
    assert record.failed is None
    assert record.provider == "CPUExecutionProvider"
    for kind, bound in record.max_abs_diff_below.items():
        worst = result.comparison.worst(kind).max_abs_diff
        assert bound / 10 < worst <= bound


@pytest.mark.parametrize(
    ("name", "failed"),
    [
        ("embeddings.layer_norm.weight", HIDDEN | MAPS | VALUES | POOLED),
        ("layers.0.attention.query.weight", AFTER_LAYER_0 | {Key("attention", 0, 0)}),
        ("layers.0.feed_forward.expand.weight", AFTER_LAYER_0),
        ("layers.1.attention.value.bias", POOLED | {Key("hidden", 2), Key("values", 1)}),
        ("layers.1.output_norm.bias", POOLED | {Key("hidden", 2)}),
    ],
)
def test_a_changed_weight_of_the_reference_fails(
    artifact_copy: Path, name: str, failed: set[Key]
) -> None:
    edit_tensor(artifact_copy / "weights.safetensors", name, lambda w: w.view(-1)[0].add_(0.5))
    result = verified(artifact_copy)
    assert not result.record().passed
    assert failed_keys(result) == failed


def graph_weights(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Return the encoder graph's float weights by name, with their positions in other files."""
    graph = onnx.load(folder / "encoder.onnx", load_external_data=False).graph
    for item in graph.initializer:
        if item.data_type == onnx.TensorProto.FLOAT and math.prod(item.dims) > 1:
            yield item.name, {entry.key: entry.value for entry in item.external_data}


@pytest.mark.slow
def test_any_changed_weight_of_the_graph_fails(
    tiny_artifact: Artifact, artifact_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Change one value of each weight in turn, including weights in weights.safetensors.

    A weight in another file cannot be changed for the graph alone, so the graph gets a copy. The
    keys' bias is exempt: it adds the same number to all scores of a query, which softmax cancels.
    A single text that reaches every weight replaces the whole grid.
    """
    text = Sample(list(range(20, 60)), [0, 1] * 20)
    monkeypatch.setattr("model.export.verify.grid", lambda _: [[text]])
    weights = dict(graph_weights(artifact_copy))
    assert len(weights) >= 5 + 2 * 16
    assert any(weights.values())
    for name, place in weights.items():

        def edit(graph: onnx.GraphProto, name: str = name, outside: bool = bool(place)) -> None:
            item = next(item for item in graph.initializer if item.name == name)
            if outside:
                onnx.external_data_helper.load_external_data_for_tensor(item, str(artifact_copy))
            values = onnx.numpy_helper.to_array(item).copy()
            values.reshape(-1)[values.size // 2] += 1
            item.CopyFrom(onnx.numpy_helper.from_array(values, name))

        edit_graph(artifact_copy / "encoder.onnx", edit)
        result = verified(artifact_copy)
        assert result.record().passed == name.endswith("attention.key.bias"), name
        (artifact_copy / "encoder.onnx").write_bytes(
            tiny_artifact.path("encoder.onnx").read_bytes()
        )


@pytest.mark.parametrize(
    ("parameter", "head"), [("query_weight", 0), ("query_bias", 2), ("key_weight", 1)]
)
def test_a_changed_head_fails_alone(artifact_copy: Path, parameter: str, head: int) -> None:
    edit_tensor(artifact_copy / "heads.safetensors", f"{parameter}.1", lambda w: w[head].add_(0.5))
    result = verified(artifact_copy)
    assert not result.record().passed
    assert failed_keys(result) == {Key("attention", 1, head)}
    failed = result.record().failed
    assert failed is not None
    assert failed.startswith(f"1 of 12 tensors, first attention of layer 1, head {head}: ")


@pytest.mark.parametrize("parameter", ["value_weight", "value_bias", "output_weight"])
def test_changed_values_of_a_head_fail_alone(artifact_copy: Path, parameter: str) -> None:
    edit_tensor(artifact_copy / "heads.safetensors", f"{parameter}.1", lambda w: w[2].add_(0.5))
    result = verified(artifact_copy)
    assert failed_keys(result) == {Key("values", 1)}
    assert (result.record().failed or "").startswith(
        "1 of 12 tensors, first vectors added by the heads of layer 1:"
    )


def test_a_graph_that_sees_padding_fails(artifact_copy: Path) -> None:
    def see_padding(graph: onnx.GraphProto) -> None:
        (mask,) = (node for node in graph.node if node.op_type == "GreaterOrEqual")
        assert mask.input[0] == "padded_index"
        mask.CopyFrom(onnx.helper.make_node("Equal", ["padded_index"] * 2, [*mask.output]))

    edit_graph(artifact_copy / "encoder.onnx", see_padding)
    result = verified(artifact_copy)
    assert not result.record().passed
    assert result.comparison.mismatches == []


def test_a_graph_that_answers_nan_fails(artifact_copy: Path) -> None:
    def poison(graph: onnx.GraphProto) -> None:
        norm = [item for item in graph.initializer if item.name.endswith("output_norm.bias")][-1]
        norm.CopyFrom(onnx.numpy_helper.from_array(np.full(12, np.nan, np.float32), norm.name))

    edit_graph(artifact_copy / "encoder.onnx", poison)
    result = verified(artifact_copy)
    assert not result.record().passed
    assert result.comparison.differences[Key("hidden", 2)] == Difference(math.inf, -1.0, False)


def test_a_reference_that_holds_nan_is_refused(artifact_copy: Path) -> None:
    edit_tensor(
        artifact_copy / "weights.safetensors",
        "layers.0.attention.key.bias",
        lambda w: w[0].fill_(math.nan),
    )
    with pytest.raises(CheckpointError, match=r"not finite: layers\.0\.attention\.key\.bias"):
        verified(artifact_copy)


def rename_output(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        node.output[:] = ["state" if name == "hidden_state.1" else name for name in node.output]
        node.input[:] = ["state" if name == "hidden_state.1" else name for name in node.input]
    graph.output[1].name = "state"


def drop_output(graph: onnx.GraphProto) -> None:
    del graph.output[0]


def fix_first_axis(graph: onnx.GraphProto) -> None:
    for value in graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = 4


def rename_axis(graph: onnx.GraphProto) -> None:
    (grid,) = (value for value in graph.input if value.name == "padded_index")
    grid.type.tensor_type.shape.dim[1].dim_param = "tokens"


def change_dtype(graph: onnx.GraphProto) -> None:
    graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT32


@pytest.mark.parametrize(
    ("graph", "edit", "named"),
    [
        ("encoder.onnx", rename_output, "outputs"),
        ("encoder.onnx", drop_output, "outputs"),
        ("encoder.onnx", fix_first_axis, "inputs"),
        ("encoder.onnx", rename_axis, "inputs"),
        ("attention.onnx", fix_first_axis, "inputs"),
        ("encoder.onnx", change_dtype, "inputs"),
    ],
)
def test_another_signature_fails_before_any_value_is_compared(
    artifact_copy: Path, graph: str, edit: Callable[[onnx.GraphProto], None], named: str
) -> None:
    edit_graph(artifact_copy / graph, edit)
    result = verified(artifact_copy)
    assert not result.record().passed
    assert result.comparison.differences == {}
    assert any(f"the graph's {named} are" in line for line in result.comparison.mismatches)
    assert not result.record().passed
    assert str(result.record().failed).startswith("the graph's ")


def test_a_report_says_each_layer_and_the_verdict(artifact_copy: Path) -> None:
    lines = report(verified(artifact_copy)).splitlines()
    assert [line.split()[:3] for line in lines[:-1]] == [
        *(
            [kind, "layer", str(layer)]
            for kind, n in (("hidden", 3), ("attention", 2), ("values", 2))
            for layer in range(n)
        ),
        ["pooled", "layer", "0"],
    ]
    assert all(line.endswith("passed") for line in lines[:-1])
    assert lines[-1].startswith("passed: ")

    edit_tensor(artifact_copy / "heads.safetensors", "key_weight.1", lambda w: w[2].add_(0.5))
    lines = report(verified(artifact_copy)).splitlines()
    assert [line.endswith("FAILED") for line in lines[:-2]] == [False] * 4 + [True] + [False] * 3
    assert lines[-2].startswith("1 of 12 tensors, first attention of layer 1, head 2: ")
    assert lines[-1].startswith("FAILED: ")

    edit_graph(artifact_copy / "encoder.onnx", drop_output)
    lines = report(verified(artifact_copy)).splitlines()
    assert "the graph's outputs are" in lines[0]
    assert lines[-1] == "FAILED: 0 inputs, ONNX against PyTorch, fp32 on CPUExecutionProvider"
