"""Contents of a foreign graph: files of its tensors, precision, inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

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
from model.artifact.manifest import ENCODER_DATA
from model.artifact.signature import Dtype, GraphSignature, TensorSpec
from model.config.precision import Precision
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
"""Types of weights by precision, the least exact first."""
INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
"""Names of a graph's possible inputs; the first two are required."""
_TEXTS, _TOKENS = 2, 3
"""Shape of the batch for a trial of the graph."""


def read_graph(path: Path) -> onnx.ModelProto:
    """Read a graph, without its tensors in other files.

    Raises:
        CheckpointError: it is not an ONNX file.

    """
    try:
        return onnx.load_model(path, load_external_data=False)
    except Exception as error:  # protobuf's exceptions share no base class with others
        raise CheckpointError(f"{path} is not an ONNX file ({type(error).__name__})") from None


def data_files(model: onnx.ModelProto, path: Path) -> list[Path]:
    """Return the files beside a graph that hold tensors of it.

    Raises:
        CheckpointError: a file is missing, a link, or not beside the graph.

    """
    files = set()
    for tensor in _tensors(model.graph):
        if uses_external_data(tensor):
            name = ExternalDataInfo(tensor).location
            file = path.parent / name
            if Path(name).name != name or file.is_symlink() or not file.is_file():
                raise CheckpointError(
                    f"{path} has tensors in {name!r}, which is not a plain file beside it"
                )
            files.add(file)
    return sorted(files)


def precision_of(model: onnx.ModelProto) -> Precision:
    """Return the least exact type of a graph's matrices; int8 for any type of at most 8 bits."""
    types = {
        TensorProto.DataType.Name(tensor.data_type)
        for tensor in _tensors(model.graph)
        if len(tensor.dims) > 1
    }
    return next((name for name, least in _PRECISIONS if types & least), "fp32")


def save_foreign(model: onnx.ModelProto, path: Path, out: Path) -> None:
    """Write a graph of `path` to `out`, with its large tensors in `ENCODER_DATA` beside it.

    The exporter's notes about its own source are removed.

    Raises:
        CheckpointError: the tensors cannot be read.
        ArtifactError: a file cannot be written.

    """
    data_files(model, path)
    try:
        load_external_data_for_model(model, str(path.parent))
    except Exception as error:  # the library's exceptions share no base class
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
    """Return the signature of a graph: its inputs, last hidden state and attention weights.

    Args:
        model: the graph.
        source: name of the graph in error messages.
        saved: file of the graph, for a trial.

    Raises:
        ConfigError: inputs or outputs are not those of a text encoder.
        ModelError: ONNX Runtime rejects the graph.

    """
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = tuple(_input(item, source) for item in model.graph.input if item.name not in weights)
    names = {spec.name for spec in inputs}
    if missing := [name for name in INPUTS[:2] if name not in names]:
        raise ConfigError(f"{source} takes no {' and no '.join(missing)}: it is not a text encoder")
    shape = (_TEXTS, _TOKENS)
    feed = {spec.name: np.zeros(shape, spec.dtype) for spec in inputs}
    feed["attention_mask"] += 1
    if "position_ids" in feed:
        feed["position_ids"] += np.arange(_TOKENS, dtype=feed["position_ids"].dtype)
    outputs = trial(saved, feed)
    return GraphSignature(
        inputs=inputs, outputs=(_output(outputs, source), *attentions(outputs, source))
    )


def _input(item: onnx.ValueInfoProto, source: Path) -> TensorSpec:
    tensor = item.type.tensor_type
    if item.name not in INPUTS:
        raise ConfigError(
            f"{source} takes an unsupported input {item.name}; {', '.join(INPUTS)} are supported"
        )
    if tensor.elem_type not in _IDS:
        kind = TensorProto.DataType.Name(tensor.elem_type)
        raise ConfigError(f"{source}: its {item.name} is {kind}, not int64 or int32")
    sizes = [dim.dim_value for dim in tensor.shape.dim if dim.HasField("dim_value")]
    if sizes or len(tensor.shape.dim) != 2:
        raise ConfigError(
            f"{source}: its {item.name} does not have two axes of any size: export it with "
            "dynamic axes"
        )
    return TensorSpec(name=item.name, dtype=_IDS[tensor.elem_type], axes=("batch", "sequence"))


def _output(outputs: Mapping[str, NDArray[np.generic]], source: Path) -> TensorSpec:
    """Return the only output with a vector per token."""
    states = {
        name: array
        for name, array in outputs.items()
        if array.ndim == 3
        and array.shape[:2] == (_TEXTS, _TOKENS)
        and array.dtype.name in FLOATS
        and name not in _OTHER_OUTPUTS
    }
    known = [name for name in _KNOWN_OUTPUTS if name in states]
    names = known[:1] or list(states)
    if len(names) != 1:
        candidates = f"several ({', '.join(names)})" if names else f"none ({', '.join(outputs)})"
        raise ConfigError(
            f"{source}: of its outputs {candidates} hold a vector for each token: export it with "
            f"{_KNOWN_OUTPUTS[0]}"
        )
    array = states[names[0]]
    axes = ("batch", "sequence", array.shape[2])
    return TensorSpec(name=names[0], dtype=FLOATS[array.dtype.name], axes=axes)


def _tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    """Yield all tensors of a graph, of its nodes' attributes and of nested graphs."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(inner)
