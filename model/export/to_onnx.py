"""Export of a PyTorch module to an ONNX graph without traces of the machine.

Graphs are exported from the modules, never written by hand, and contain no stack traces, paths or
times: the same module gives the same bytes on every machine.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn

from model.artifact.integrity import writing
from model.artifact.signature import GraphSignature
from model.errors import ArtifactError
from model.export.shared_tensors import LEAST_BYTES, places_of, refer
from model.export.torch_exporter import without_spare_work

OPSET = 20
ATTENTION_OPSET = 23
"""Version of ONNX's operators that has `Attention`."""


def example_of(signature: GraphSignature) -> tuple[Tensor, ...]:
    """Return example inputs, with a different size above 1 for each dynamic axis.

    Sequences are so long that no part of them in `model.attention.long_texts` has size 1, which the
    exporter would treat as fixed. Each input is a tensor of its own: the exporter would merge a
    shared tensor into one input.
    """
    sizes = {
        "tokens": 7,
        "target_tokens": 10,
        "target_sequence": 160,
        "batch": 2,
        "sequence": 150,
        "queries": 8,
        "keys": 9,
        "heads": 3,
        "parts": 5,
        "vectors": 4,
        "columns": 6,
    }
    return tuple(
        torch.zeros(
            [sizes[axis] if isinstance(axis, str) else axis for axis in spec.axes],
            dtype=getattr(torch, spec.dtype),
        )
        for spec in signature.inputs
    )


def to_onnx(
    module: nn.Module,
    signature: GraphSignature,
    *,
    to_fuse: bool = False,
    example: tuple[Tensor, ...] | None = None,
) -> onnx.ModelProto:
    """Export a module under a signature, in evaluation mode, without metadata of this machine.

    The example is needed for axes that `example_of` does not know. A graph to fuse may have
    `Attention`, and has the axes of every node's outputs. ONNX Runtime infers no axes after a
    reshape to a computed shape, and fuses norms only where it knows all axes.
    """
    dims = {
        axis: torch.export.Dim(axis)
        for spec in signature.inputs
        for axis in spec.axes
        if isinstance(axis, str)
    }
    dynamic = tuple(
        {i: dims[axis] for i, axis in enumerate(spec.axes) if isinstance(axis, str)}
        for spec in signature.inputs
    )
    with _quiet_exporter(), without_spare_work():
        program = torch.onnx.export(
            module.eval(),
            example or example_of(signature),
            dynamo=True,
            opset_version=ATTENTION_OPSET if to_fuse else OPSET,
            input_names=[spec.name for spec in signature.inputs],
            output_names=[spec.name for spec in signature.outputs],
            dynamic_shapes=(dynamic,),
            verbose=False,
        )
    if program is None:
        raise ArtifactError("the exporter gave no graph")
    model = program.model_proto
    computed = {name for node in model.graph.node for name in node.output}
    shapes = [value for value in model.graph.value_info if to_fuse and value.name in computed]
    without_metadata(model).graph.value_info.extend(
        onnx.ValueInfoProto(name=value.name, type=value.type) for value in shapes
    )
    return model


@contextlib.contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silence warnings of the exporter about its internals, shared axis names and torchvision."""
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*axis name.*will not be used.*")
        warnings.filterwarnings("ignore", message=".*treespec, LeafSpec.*", category=FutureWarning)
        yield


def without_metadata(model: onnx.ModelProto) -> onnx.ModelProto:
    """Remove stack traces, doc strings and value annotations, which identify the machine."""
    del model.metadata_props[:]
    model.doc_string = ""
    graph = model.graph
    del graph.metadata_props[:]
    del graph.value_info[:]
    graph.doc_string = ""
    for item in (*graph.node, *graph.input, *graph.output, *graph.initializer):
        del item.metadata_props[:]
        item.doc_string = ""
    for function in model.functions:
        raise ArtifactError(f"the exported graph holds a local function, {function.name}")
    return model


def save_graph(
    model: onnx.ModelProto, path: Path, external: str | None = None, beside: Sequence[Path] = ()
) -> None:
    """Write a graph.

    Weights that no file `beside` it has go to the file `external`, if it is named.
    """
    if all(opset.domain == "" for opset in model.opset_import):  # it knows no other operators
        onnx.checker.check_model(model)
    refer(model, places_of(beside))
    with writing(path):
        if external is None:
            onnx.save_model(model, path)
        else:
            onnx.save_model(
                model,
                path,
                save_as_external_data=True,
                location=external,
                size_threshold=LEAST_BYTES,
            )
            (path.parent / external).touch()  # exists even if no tensor is large enough
