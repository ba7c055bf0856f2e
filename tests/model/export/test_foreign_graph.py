"""Reading of foreign graphs, and errors for graphs that are not text encoders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from model.artifact.signature import GraphSignature
from model.errors import CheckpointError, ConfigError, ModelError
from model.export.foreign_graph import (
    data_files,
    precision_of,
    read_graph,
    save_foreign,
    signature_of,
)

Kind = tuple[str, int, Sequence[str | int]]
IDS: Kind = ("input_ids", TensorProto.INT64, ("b", "s"))
MASK: Kind = ("attention_mask", TensorProto.INT64, ("b", "s"))
BOTH = (IDS, MASK)


def lookup(
    inputs: Sequence[Kind] = BOTH, outputs: Sequence[str] = ("y",), weights: str = "float32"
) -> onnx.ModelProto:
    """Return a graph whose outputs have five features for each id; "flat" has the ids' mean."""
    rows = numpy_helper.from_array(np.ones((500, 5), weights), "rows")
    nodes = [
        helper.make_node("Gather", ["rows", inputs[0][0]], [name])
        if name != "flat"
        else helper.make_node("ReduceSum", [inputs[0][0]], ["flat"], keepdims=1)
        for name in outputs
    ]
    given = [helper.make_tensor_value_info(*kind) for kind in inputs]
    results = [
        helper.make_empty_tensor_value_info(name)
        if name == "flat"
        else helper.make_tensor_value_info(name, rows.data_type, None)
        for name in outputs
    ]
    for result in results:
        if result.name == "flat":
            result.type.tensor_type.elem_type = TensorProto.INT64
    graph = helper.make_graph(nodes, "lookup", given, results, [rows])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def signature(model: onnx.ModelProto, folder: Path) -> GraphSignature:
    save_foreign(model, folder / "model.onnx", folder / "encoder.onnx")
    return signature_of(model, Path("model.onnx"), folder / "encoder.onnx")


@pytest.mark.parametrize(
    ("outputs", "chosen"),
    [
        (["y"], "y"),
        (["flat", "anything"], "anything"),
        (["other", "last_hidden_state"], "last_hidden_state"),
        (["token_embeddings", "other", "flat"], "token_embeddings"),
        (["logits", "z"], "z"),
    ],
)
def test_the_output_is_found_by_what_it_holds(
    tmp_path: Path, outputs: list[str], chosen: str
) -> None:
    found = signature(lookup(outputs=outputs), tmp_path)
    assert [spec.name for spec in found.inputs] == ["input_ids", "attention_mask"]
    (output,) = found.outputs
    assert (output.name, output.axes, output.dtype) == (chosen, ("batch", "sequence", 5), "float32")


@pytest.mark.parametrize(
    ("inputs", "outputs", "part"),
    [
        ([IDS], ["y"], "takes no attention_mask: it is not a text encoder"),
        (
            [*BOTH, ("task_id", TensorProto.INT64, ("b",))],
            ["y"],
            "takes an unsupported input task_id",
        ),
        ([IDS, ("attention_mask", TensorProto.FLOAT, ("b", "s"))], ["y"], "is FLOAT, not int64"),
        ([("input_ids", TensorProto.INT64, (1, 128)), MASK], ["y"], "two axes of any size"),
        ([("input_ids", TensorProto.INT64, ("s",)), MASK], ["y"], "two axes of any size"),
        (BOTH, ["a", "b"], r"several \(a, b\) hold a vector for each token: export it with last"),
        (BOTH, ["logits"], r"none \(logits\) hold a vector for each token"),
        (BOTH, ["flat"], r"none \(flat\) hold"),
    ],
)
def test_refusals(tmp_path: Path, inputs: list[Kind], outputs: list[str], part: str) -> None:
    with pytest.raises(ConfigError, match=part) as failed:
        signature(lookup(inputs, outputs), tmp_path)
    assert str(failed.value).startswith("model.onnx")
    assert "\n" not in str(failed.value)


def test_what_onnx_runtime_refuses(tmp_path: Path) -> None:
    model = lookup()
    model.graph.node[0].op_type = "Nothing"
    with pytest.raises(ModelError, match=r"ONNX Runtime cannot load encoder\.onnx"):
        signature(model, tmp_path)
    model = lookup()
    del model.graph.initializer[0].dims[:]
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.float32(1), "rows"))
    with pytest.raises(ModelError, match="ONNX Runtime cannot"):
        signature(model, tmp_path)


@pytest.mark.parametrize(
    ("weights", "precision"), [("float32", "fp32"), ("float16", "fp16"), ("int8", "int8")]
)
def test_precision(weights: str, precision: str) -> None:
    assert precision_of(lookup(weights=weights)) == precision


def test_tensors_beside_the_graph(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save_model(lookup(), path, save_as_external_data=True, location="a.bin", size_threshold=0)
    assert data_files(read_graph(path), path) == [tmp_path / "a.bin"]
    out = tmp_path / "out"
    out.mkdir()
    save_foreign(read_graph(path), path, out / "encoder.onnx")
    assert sorted(file.name for file in out.iterdir()) == ["encoder.onnx", "encoder.onnx.data"]
    rows = onnx.load(out / "encoder.onnx").graph.initializer[0]
    np.testing.assert_array_equal(numpy_helper.to_array(rows), np.ones((500, 5)))


@pytest.mark.parametrize("case", ["outside", "absolute", "link", "gone"])
def test_tensors_elsewhere(tmp_path: Path, case: str) -> None:
    path, secret = tmp_path / "in" / "model.onnx", tmp_path / "secret"
    path.parent.mkdir()
    secret.write_bytes(bytes(10_000))
    onnx.save_model(lookup(), path, save_as_external_data=True, location="a.bin", size_threshold=0)
    (path.parent / "a.bin").unlink()
    model = read_graph(path)
    places = {"outside": "../secret", "absolute": str(secret), "link": "a.bin", "gone": "a.bin"}
    if case == "link":
        (path.parent / "a.bin").symlink_to(secret)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = places[case]
    with pytest.raises(CheckpointError, match="which is not a plain file beside it"):
        save_foreign(model, path, tmp_path / "encoder.onnx")


def test_tensors_beyond_the_end_of_their_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save_model(lookup(), path, save_as_external_data=True, location="a.bin", size_threshold=0)
    (tmp_path / "a.bin").write_bytes(b"short")
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ModelError):
        signature_of(read_graph(path), path, _saved(path, out))


def _saved(path: Path, out: Path) -> Path:
    save_foreign(read_graph(path), path, out / "encoder.onnx")
    return out / "encoder.onnx"


def test_no_onnx_file(tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_text("no graph")
    with pytest.raises(CheckpointError, match="is not an ONNX file"):
        read_graph(tmp_path / "x.onnx")
