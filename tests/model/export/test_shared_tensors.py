"""References to tensors in other files, which ONNX Runtime resolves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

from model.artifact.mapped import mapped_tensors, read_header
from model.export.shared_tensors import Place, external, places_of, save_tensors
from model.export.to_onnx import save_graph

RNG = np.random.default_rng(0)
TABLE, OWN = RNG.random((40, 8), np.float32), RNG.random((40, 8), np.float32)


def rows_of(*tables: np.ndarray) -> onnx.ModelProto:
    """Write a graph that returns the rows `ids` of each table."""
    names = [f"table.{n}" for n in range(len(tables))]
    ids = make_tensor_value_info("ids", onnx.TensorProto.INT64, ["n"])
    graph = make_graph(
        [make_node("Gather", [name, "ids"], [f"rows.{n}"]) for n, name in enumerate(names)],
        "rows",
        [ids],
        [make_tensor_value_info(f"rows.{n}", 1, ["n", 8]) for n in range(len(tables))],
        [numpy_helper.from_array(each, name) for each, name in zip(tables, names, strict=True)],
    )
    return make_model(graph, opset_imports=[make_opsetid("", 20)], ir_version=10)


def test_what_is_there_is_not_written_again(tmp_path: Path) -> None:
    """The second graph refers to one table of the first and stores two; a third graph follows."""
    first, second, third = (tmp_path / f"{name}.onnx" for name in ("first", "second", "third"))
    save_graph(rows_of(TABLE), first, "first.data")
    save_graph(rows_of(TABLE, OWN), second, "second.data", [first])
    save_graph(rows_of(OWN, TABLE, OWN + 1), third, "second.data", [first, second])
    assert (tmp_path / "first.data").stat().st_size == TABLE.nbytes
    assert (tmp_path / "second.data").stat().st_size == 2 * TABLE.nbytes
    assert {*places_of([third]).values()} == {
        Place("first.data", 0, TABLE.nbytes),
        Place("second.data", 0, TABLE.nbytes),
        Place("second.data", TABLE.nbytes, TABLE.nbytes),
    }
    session = onnxruntime.InferenceSession(third, providers=["CPUExecutionProvider"])
    found = session.run(None, {"ids": np.array([3, 39])})
    for rows, table in zip(found, (OWN, TABLE, OWN + 1), strict=True):
        np.testing.assert_array_equal(rows, table[[3, 39]])


def test_tensors_of_a_safetensors_file_are_named_there_transposed_too(tmp_path: Path) -> None:
    """ONNX Runtime reads them at their positions in that file."""
    save_tensors(
        {"table": torch.tensor(TABLE), "own": torch.tensor(OWN.T.copy())}, weights(tmp_path)
    )
    graph = tmp_path / "graph.onnx"
    save_graph(rows_of(TABLE, OWN, OWN + 1), graph, "graph.data", [weights(tmp_path)])
    assert (tmp_path / "graph.data").stat().st_size == OWN.nbytes
    assert {place.location for place in external(graph)} == {"weights.safetensors", "graph.data"}
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    found = session.run(None, {"ids": np.array([3, 39])})
    for rows, table in zip(found, (TABLE, OWN, OWN + 1), strict=True):
        np.testing.assert_array_equal(rows, table[[3, 39]])


def test_a_safetensors_file_names_tensors_of_another(tmp_path: Path) -> None:
    whole = torch.tensor(TABLE)
    save_tensors({"whole": whole}, weights(tmp_path))
    written = {
        "rows": whole.view(4, 10, 8),
        "columns": whole.view(40, 2, 4).transpose(0, 1),
        "small": whole[0],
        "own": whole + 1,
    }
    path = tmp_path / "heads.safetensors"
    save_tensors(written, path, [weights(tmp_path)])
    assert read_header(path).own.keys() == {"small", "own"}
    found = mapped_tensors(path)
    assert found.keys() == written.keys()
    for key, tensor in written.items():
        np.testing.assert_array_equal(found[key], tensor.numpy(), strict=True)


def weights(folder: Path) -> Path:
    return folder / "weights.safetensors"


def test_small_tensors_stay_in_their_graph(tmp_path: Path) -> None:
    save_graph(rows_of(TABLE[:4]), tmp_path / "small.onnx", "small.data")
    assert places_of([tmp_path / "small.onnx"]) == {}
