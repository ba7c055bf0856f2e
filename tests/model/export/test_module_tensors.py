from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.artifact.mapped import mapped_tensors, read_header
from model.artifact.vectors import TextVectors
from model.checkpoint import load_checkpoint
from model.config.encoder import patches_of
from model.errors import CheckpointError
from model.export.module_tensors import module_tensors, pooling_tensors
from model.export.shared_tensors import Place, external, places_of, save_tensors
from model.export.to_onnx import save_graph
from model.families.registry import read_config
from model.numerics.vector_modules import Dense, LayerNorm, Normalize
from model.packing import PackedBatch
from model.sources.overlay import split
from model.sources.sentence import read_sentence
from tests.model.families.picture_parity import packed_pictures
from tests.model.pickles import pickle_weights
from tests.model.sentences import modules_of
from tests.model.tower_checkpoints import clip, save_towers, siglip

DENSE = Dense(in_features=3, out_features=2)
TENSORS = {"linear.weight": torch.randn(2, 3), "linear.bias": torch.randn(2)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a folder of Normalize → Dense → Dropout → LayerNorm, without the encoder's files."""
    kinds = ("Transformer", "Pooling", "Normalize", "Dense", "Dropout", "LayerNorm")
    (tmp_path / "modules.json").write_text(json.dumps(modules_of(*kinds)))
    write(tmp_path, "3_Dense", TENSORS)
    write(tmp_path, "5_LayerNorm", {"norm.weight": torch.ones(2), "norm.bias": torch.zeros(2)})
    return tmp_path


def write(folder: Path, name: str, tensors: dict[str, Tensor]) -> None:
    (folder / name).mkdir(exist_ok=True)
    save_file(tensors, folder / name / "model.safetensors")


def test_tensors_go_by_the_place_of_their_module(folder: Path) -> None:
    found = module_tensors(folder, (Normalize(), DENSE, LayerNorm(dimension=2)))
    assert list(found) == ["1.linear.bias", "1.linear.weight", "2.norm.bias", "2.norm.weight"]
    torch.testing.assert_close(found["1.linear.weight"], TENSORS["linear.weight"])


def test_they_are_float32_whatever_the_file_holds(folder: Path) -> None:
    write(folder, "3_Dense", {name: t.to(torch.bfloat16) for name, t in TENSORS.items()})
    found = module_tensors(folder, (DENSE,))
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}


def test_without_modules_there_are_none(tmp_path: Path) -> None:
    assert module_tensors(tmp_path, ()) == {}


@pytest.mark.parametrize(
    "tensors",
    [
        {"linear.weight": torch.ones(2, 3)},
        TENSORS | {"more": torch.ones(1)},
        TENSORS | {"linear.weight": torch.ones(3, 2)},
    ],
    ids=["missing", "unexpected", "mis-shaped"],
)
def test_other_tensors_are_refused(folder: Path, tensors: dict[str, Tensor]) -> None:
    write(folder, "3_Dense", tensors)
    with pytest.raises(CheckpointError, match=r"not those of its config\.json, \{'linear\.weight'"):
        module_tensors(folder, (DENSE,))


def test_values_have_to_be_finite(folder: Path) -> None:
    write(folder, "3_Dense", TENSORS | {"linear.bias": torch.tensor([1, float("nan")])})
    with pytest.raises(CheckpointError, match=r"linear\.bias holds a value that is not finite"):
        module_tensors(folder, (DENSE,))


def test_damaged_weights_are_refused(folder: Path) -> None:
    (folder / "3_Dense" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        module_tensors(folder, (DENSE,))


def test_pickled_weights_are_read(folder: Path) -> None:
    expected = module_tensors(folder, (DENSE,))
    pickle_weights(folder / "3_Dense")
    found = module_tensors(folder, (DENSE,))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


SHAPES: list[dict[str, Any]] = [
    {},
    {"image_size": 48, "patch_size": 16, "hidden_act": "gelu"},
    {"image_size": 24, "patch_size": 8, "num_attention_heads": 4, "layer_norm_eps": 1e-3},
]


@pytest.mark.parametrize("vision", SHAPES, ids=str)
@pytest.mark.parametrize("make", [clip, siglip])
def test_pooled_and_projected_pictures_equal_transformers(
    make: Callable[..., Any], vision: dict[str, Any], tmp_path: Path
) -> None:
    model = make(vision=vision)
    (tmp_path / "links").mkdir()
    folder = split(save_towers(model, tmp_path / "a"), tmp_path / "links")["vision"]
    encoder = load_checkpoint(folder)
    config, patches = encoder.config, patches_of(encoder.config)
    sentence = read_sentence(folder, config.max_position_embeddings, config.hidden_size)
    tensors = module_tensors(folder, sentence.modules)
    if sentence.pooling == "attention":
        tensors |= pooling_tensors(folder, config)
    vectors = TextVectors.with_tensors(
        sentence, config, {name: tensor.numpy() for name, tensor in tensors.items()}
    )
    edge = patches.rows * patches.size
    pictures = torch.randn(2, 3, edge, edge, generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        expected = model.get_image_features(pixel_values=pictures).pooler_output.numpy()
        states = encoder(PackedBatch.of(packed_pictures(patches, pictures))).hidden_states[-1]
    pooled = [vectors.pool(own.numpy(), sentence.pooling) for own in states.chunk(2)]
    atol = 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(np.stack(vectors.finish(pooled)), expected, atol=atol, rtol=0)


def test_a_pooling_without_its_parameters_is_refused(tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    folder = split(save_towers(siglip(), tmp_path / "a"), tmp_path / "links")["vision"]
    weights = load_file(tmp_path / "a" / "model.safetensors")
    weights["vision_model.head.probe"] = torch.zeros(3)
    save_file(weights, tmp_path / "a" / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"head.probe is \(3,\) or not finite"):
        pooling_tensors(folder, read_config(folder))


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
