"""The content of a foreign graph: its tensors' files and precision, its inputs and its outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto
from onnx.external_data_helper import (
    ExternalDataInfo,
    load_external_data_for_model,
    uses_external_data,
)

from model.artifact.access import writing
from model.artifact.foreign import INPUTS
from model.artifact.manifest import ENCODER_DATA, Precision
from model.artifact.signature import Dtype, GraphSignature, TensorSpec
from model.errors import CheckpointError, ConfigError
from model.export.foreign_attentions import FLOATS, attentions
from model.runtimes.registry import trial

_IDS: Mapping[int, Dtype] = {TensorProto.INT64: "int64", TensorProto.INT32: "int32"}
_KNOWN_OUTPUTS = ("last_hidden_state", "token_embeddings")
_OTHER_OUTPUTS = ("logits",)
_PRECISIONS: tuple[tuple[Precision, frozenset[str]], ...] = (
    ("int8", frozenset({"INT8", "UINT8", "INT4", "UINT4", "INT2", "UINT2"})),
    ("bf16", frozenset({"BFLOAT16"})),
    ("fp16", frozenset({"FLOAT16"})),
)
"""Types of weights, the least exact first."""
_TEXTS, _TOKENS = 2, 3
"""Size of the batch that a graph is tried on."""


def read_graph(path: Path) -> onnx.ModelProto:
    """A graph, without its tensors in other files.

    Raises:
        CheckpointError: it is no ONNX file.

    """
    try:
        return onnx.load_model(path, load_external_data=False)
    except Exception as error:  # protobuf's own exceptions share no base class with others
        raise CheckpointError(f"{path} is no ONNX file ({type(error).__name__})") from None


def data_files(model: onnx.ModelProto, path: Path) -> list[Path]:
    """The files of a graph's tensors that are not in its own.

    Raises:
        CheckpointError: one is missing, a link, or not beside the graph.

    """
    found = set()
    for tensor in _tensors(model.graph):
        if uses_external_data(tensor):
            name = ExternalDataInfo(tensor).location
            file = path.parent / name
            if Path(name).name != name or file.is_symlink() or not file.is_file():
                raise CheckpointError(
                    f"{path} has tensors in {name!r}, which is no plain file beside it"
                )
            found.add(file)
    return sorted(found)


def precision_of(model: onnx.ModelProto) -> Precision:
    """The least exact type of a graph's matrices; int8 for any of at most 8 bits."""
    types = {
        TensorProto.DataType.Name(tensor.data_type)
        for tensor in _tensors(model.graph)
        if len(tensor.dims) > 1
    }
    return next((name for name, least in _PRECISIONS if types & least), "fp32")


def save_foreign(model: onnx.ModelProto, path: Path, out: Path) -> None:
    """Write a graph of `path` to `out`, with its large tensors in `ENCODER_DATA` beside it.

    What the exporter noted of its own source goes.

    Raises:
        CheckpointError: its tensors cannot be read.
        ArtifactError: a file cannot be written.

    """
    data_files(model, path)
    try:
        load_external_data_for_model(model, str(path.parent))
    except Exception as error:  # the library's own exceptions share no base class
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path}: its tensors cannot be read: {reason}") from None
    for item in (model, model.graph, *model.graph.node, *model.graph.initializer):
        item.doc_string = ""
        del item.metadata_props[:]
    with writing(out):
        onnx.save_model(
            model, out, save_as_external_data=True, location=ENCODER_DATA, size_threshold=1024
        )
        (out.parent / ENCODER_DATA).touch()


def signature_of(model: onnx.ModelProto, source: Path, saved: Path) -> GraphSignature:
    """The inputs of a graph, the output that has the last hidden state, and its attention weights.

    Args:
        model: the graph.
        source: what it is called in a refusal.
        saved: where it was written, to be tried.

    Raises:
        ConfigError: they are not those of an encoder of texts.
        ModelError: ONNX Runtime refuses the graph.

    """
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = tuple(_input(item, source) for item in model.graph.input if item.name not in weights)
    names = {spec.name for spec in inputs}
    if missing := [name for name in INPUTS[:2] if name not in names]:
        raise ConfigError(f"{source} takes no {' and no '.join(missing)}: it is no text encoder")
    shape = (_TEXTS, _TOKENS)
    feed = {spec.name: np.zeros(shape, spec.dtype) for spec in inputs}
    feed["attention_mask"] += 1
    if "position_ids" in feed:
        feed["position_ids"] += np.arange(_TOKENS, dtype=feed["position_ids"].dtype)
    found = trial(saved, feed)
    return GraphSignature(
        inputs=inputs, outputs=(_output(found, source), *attentions(found, source))
    )


def _input(item: onnx.ValueInfoProto, source: Path) -> TensorSpec:
    tensor = item.type.tensor_type
    if item.name not in INPUTS:
        raise ConfigError(
            f"{source} takes {item.name}, which nothing here gives; {', '.join(INPUTS)} are given"
        )
    if tensor.elem_type not in _IDS:
        kind = TensorProto.DataType.Name(tensor.elem_type)
        raise ConfigError(f"{source}: its {item.name} is {kind}, not int64 or int32")
    sizes = [dim.dim_value for dim in tensor.shape.dim if dim.HasField("dim_value")]
    if sizes or len(tensor.shape.dim) != 2:
        raise ConfigError(
            f"{source}: its {item.name} has not two axes of any size: export it with dynamic axes"
        )
    return TensorSpec(name=item.name, dtype=_IDS[tensor.elem_type], axes=("batch", "sequence"))


def _output(found: Mapping[str, NDArray[Any]], source: Path) -> TensorSpec:
    """The one output with a vector a token."""
    states = {
        name: array
        for name, array in found.items()
        if array.ndim == 3
        and array.shape[:2] == (_TEXTS, _TOKENS)
        and array.dtype.name in FLOATS
        and name not in _OTHER_OUTPUTS
    }
    known = [name for name in _KNOWN_OUTPUTS if name in states]
    names = known[:1] or list(states)
    if len(names) != 1:
        what = f"several ({', '.join(names)})" if names else f"none ({', '.join(found)})"
        raise ConfigError(
            f"{source}: of its outputs {what} hold a vector for each token: export it with "
            f"{_KNOWN_OUTPUTS[0]}"
        )
    array = states[names[0]]
    axes = ("batch", "sequence", array.shape[2])
    return TensorSpec(name=names[0], dtype=FLOATS[array.dtype.name], axes=axes)


def _tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    """All tensors of a graph, of its nodes' attributes and of the graphs in them."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(inner)
