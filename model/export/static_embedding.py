"""Static embeddings (model2vec) as ONNX graphs, which are then imported like any foreign graph.

Format: sentence-transformers' module StaticEmbedding, a table of one vector a token and a tokenizer
without special tokens; also model2vec's own keys, whose tokens share rows and have weights
(https://github.com/MinishLab/model2vec). A text's vector is the mean of its tokens' rows. Without
torch.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from safetensors import SafetensorError
from safetensors.numpy import load_file

from model.artifact.cache import exporter_version
from model.artifact.integrity import sha256_once
from model.artifact.modules import MODULES, ModuleEntry, listed_modules, read_json, read_object
from model.artifact.weight_files import WEIGHTS
from model.config.encoder import STATIC
from model.errors import CheckpointError
from model.families.rotary import LONGEST
from model.sources.home import EXPORTS, make_cache

_SETTINGS = "config_sentence_transformers.json"
_TOKENIZER = "tokenizer.json"
_POOLING = "headscope-pooling"
_CLASSES = "sentence_transformers.models."
_FLOATS = ("float16", "float32", "float64")


def static_export(checkpoint: Path, folders: Path) -> Path:
    """Return a folder with the ONNX graph and the descriptions of a static embedding.

    Args:
        checkpoint: folder whose first module is StaticEmbedding.
        folders: parent of the new folder, which is reused if it exists.

    Raises:
        ConfigError: a description cannot be read.
        CheckpointError: the table or the tokenizer cannot be read.

    """
    first, *others = listed_modules(checkpoint) or []
    read = [first.folder / WEIGHTS, first.folder / _TOKENIZER, checkpoint / MODULES]
    for path in read:
        if not path.is_file():
            raise CheckpointError(f"{checkpoint}: {path.name} of StaticEmbedding is missing")
    digest = hashlib.sha256(f"{checkpoint.resolve()}\0{exporter_version(('onnx',))}".encode())
    settings = checkpoint / _SETTINGS
    for path in [*read, settings] if settings.is_file() else read:
        digest.update(sha256_once(path).encode())
    folder = folders / digest.hexdigest()[:32]
    if folder.exists():
        return folder
    make_cache(folders, EXPORTS)
    scratch = Path(tempfile.mkdtemp(dir=folders))
    try:
        table = read_table(first.folder / WEIGHTS)
        _save_graph(table, scratch / "model.onnx")
        _describe(checkpoint, first, others, table.shape, scratch)
        if not folder.exists():
            scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def read_table(path: Path) -> NDArray[np.float32]:
    """Return one row per token id, `[V, D]`, in float32.

    model2vec's `mapping` `[V]` names each token's row of `embeddings`, and `weights` `[V]` its
    factor.

    Raises:
        CheckpointError: the file cannot be read, or does not hold such a table.

    """
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file: {error}") from None
    rows = tensors.get("embedding.weight")
    mapping = weights = None
    if rows is None:
        rows, mapping, weights = map(tensors.get, ("embeddings", "mapping", "weights"))
    if rows is None or rows.ndim != 2 or rows.dtype.name not in _FLOATS:
        raise CheckpointError(
            f"{path} holds no table of vectors in float16, float32 or float64: embedding.weight, "
            "or model2vec's embeddings"
        )
    table = rows.astype(np.float32)
    if mapping is not None:
        if mapping.ndim != 1 or not ((mapping >= 0) & (mapping < len(rows))).all():
            raise CheckpointError(f"{path}: mapping names rows that embeddings does not have")
        table = table[mapping]
    if weights is not None:
        if weights.shape != table.shape[:1]:
            raise CheckpointError(f"{path}: weights {weights.shape} is not one factor a token")
        table = (table * weights[:, None]).astype(np.float32)
    if not np.isfinite(table).all():
        raise CheckpointError(f"{path}: the table of vectors is not finite")
    return table


def _save_graph(table: NDArray[np.float32], path: Path) -> None:
    """Write a graph that looks up each token's row, with the table beside it."""
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in ("input_ids", "attention_mask")
    ]
    axes = ["batch", "sequence", table.shape[1]]
    states = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, axes)
    node = helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])
    rows = numpy_helper.from_array(table, "table")
    graph = helper.make_graph([node], "static", inputs, [states], [rows])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save_model(model, path, save_as_external_data=True, location=f"{path.name}.data")


def _describe(
    checkpoint: Path,
    first: ModuleEntry,
    others: list[ModuleEntry],
    shape: tuple[int, ...],
    folder: Path,
) -> None:
    """Write the descriptions of a Transformer with mean pooling and the checkpoint's modules."""
    config = {"model_type": STATIC, "vocab_size": shape[0], "hidden_size": shape[1]}
    listed = read_json(checkpoint / MODULES)[1:]
    for module in others:
        if module.folder.is_dir() and module.folder != checkpoint:
            (folder / module.folder.name).symlink_to(module.folder.resolve())
    modules = [
        {"path": "", "type": f"{_CLASSES}Transformer"},
        {"path": _POOLING, "type": f"{_CLASSES}Pooling"},
        *listed,
    ]
    contents: Mapping[str, Any] = {
        "config.json": config | {"max_position_embeddings": LONGEST},
        MODULES: modules,
        _TOKENIZER: _without_special_tokens(first.folder / _TOKENIZER),
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
        f"{_POOLING}/config.json": {"pooling_mode": "mean"},
    }
    if settings := read_object(checkpoint / _SETTINGS):
        contents = {**contents, _SETTINGS: settings}
    (folder / _POOLING).mkdir()
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")


def _without_special_tokens(path: Path) -> dict[str, Any]:
    """Return a tokenizer that adds no special tokens, pads nothing and cuts nothing."""
    return read_object(path) | {"post_processor": None, "padding": None, "truncation": None}
