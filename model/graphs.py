"""The encoder and its attention as ONNX graphs.

Graphs are exported from the PyTorch modules, never written by hand, and carry no stack traces,
no paths and no times: the same module gives the same bytes wherever it is exported.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn
from torch.nn import functional

from model.artifact import RuntimeName
from model.attention import split_heads
from model.config import EncoderConfig
from model.encoder import Encoder
from model.errors import ArtifactError
from model.normalizers import NORMALIZERS
from model.packing import PackedBatch
from model.scores import SCORES
from model.signature import GraphSignature, attention_signature, encoder_signature

OPSET = 20


class HiddenStates(nn.Module):
    """The encoder graph: a packed batch to the tuple of all hidden states."""

    def __init__(self, encoder: Encoder, engine: RuntimeName) -> None:
        super().__init__()
        self.encoder = encoder
        self.three_axes = engine == "openvino"
        """OpenVINO's kernels that quantize are made for `[1, T, H]`, while ONNX Runtime adds a bias
        within the product only with `[T, H]` (docs/decisions/0005-packed-texts.md)."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The five inputs of a packed batch → L + 1 tensors `[T, H]`."""
        batch = PackedBatch(*inputs)
        if self.three_axes:
            batch = batch._replace(
                input_ids=batch.input_ids[None],
                token_type_ids=batch.token_type_ids[None],
                position_ids=batch.position_ids[None],
            )
        states = self.encoder(batch).hidden_states
        return tuple(state.squeeze(0) for state in states) if self.three_axes else states


class HeadWeights(nn.Module):
    """The attention graph: a layer's input and n heads' parameters to n maps.

    It holds no weights of its own, so one graph serves every head of every layer.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.score = SCORES[config.attention_score].function
        self.normalize = NORMALIZERS[config.attention_normalizer]

    def forward(self, *inputs: Tensor) -> Tensor:
        """A hidden state `[B, S, H]` and parameters `[n, …]` → `[B, n, S, S]`.

        The parameters are the weight `[n, p, H]` and bias `[n, p]` of the query, those of the
        key, then the score's own.
        """
        hidden_state, query_weight, query_bias, key_weight, key_bias, *score_parameters = inputs
        n = query_weight.shape[0]
        query = functional.linear(hidden_state, query_weight.flatten(0, 1), query_bias.flatten())
        key = functional.linear(hidden_state, key_weight.flatten(0, 1), key_bias.flatten())
        scores = self.score(split_heads(query, n), split_heads(key, n), *score_parameters)
        return self.normalize(scores, None)


def one_head_shapes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Name → shape of one head's parameter, in the attention graph's order."""
    p, h = config.head_size, config.hidden_size
    projections = {
        "query_weight": (p, h),
        "query_bias": (p,),
        "key_weight": (p, h),
        "key_bias": (p,),
    }
    scores = SCORES[config.attention_score].parameter_shapes(1, p, p)
    return projections | {f"score_{name}": shape[1:] for name, shape in scores.items()}


def export_encoder(encoder: Encoder, engine: RuntimeName) -> onnx.ModelProto:
    """The encoder graph, with dynamic tokens, batch and sequence axes."""
    signature = encoder_signature(encoder.config)
    return to_onnx(HiddenStates(encoder, engine).eval(), example_of(signature), signature)


def export_attention(config: EncoderConfig) -> onnx.ModelProto:
    """The attention graph, with dynamic batch, sequence and heads axes."""
    signature = attention_signature(config, one_head_shapes(config))
    return to_onnx(HeadWeights(config).eval(), example_of(signature), signature)


def example_of(signature: GraphSignature) -> tuple[Tensor, ...]:
    """Inputs of some size on every dynamic axis, each different from 1 and from the others.

    Each is a tensor of its own: the exporter would make a shared one a single input.
    """
    sizes = {"tokens": 7, "batch": 2, "sequence": 5, "heads": 3}
    return tuple(
        torch.zeros(
            [sizes[axis] if isinstance(axis, str) else axis for axis in spec.axes],
            dtype=getattr(torch, spec.dtype),
        )
        for spec in signature.inputs
    )


def to_onnx(
    module: nn.Module, example: tuple[Tensor, ...], signature: GraphSignature
) -> onnx.ModelProto:
    """Export a module under a signature, free of anything that names this machine."""
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
    with _quiet_exporter():
        program = torch.onnx.export(
            module,
            example,
            dynamo=True,
            opset_version=OPSET,
            input_names=[spec.name for spec in signature.inputs],
            output_names=[spec.name for spec in signature.outputs],
            dynamic_shapes=(dynamic,),
            verbose=False,
        )
    if program is None:
        raise ArtifactError("the exporter gave no graph")
    return without_metadata(program.model_proto)


@contextlib.contextmanager
def _quiet_exporter() -> Iterator[None]:
    """The exporter warns of its own internals, of shared axis names, and of no torchvision."""
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*axis name.*will not be used.*")
        warnings.filterwarnings("ignore", message=".*treespec, LeafSpec.*", category=FutureWarning)
        yield


def without_metadata(model: onnx.ModelProto) -> onnx.ModelProto:
    """Strip stack traces, doc strings and value annotations: they name the exporting machine."""
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


def save_graph(model: onnx.ModelProto, path: Path, external: str | None = None) -> None:
    """Write a graph; with `external`, its weights go to that file beside it."""
    onnx.checker.check_model(model)
    if external is None:
        onnx.save_model(model, path)
    else:
        onnx.save_model(
            model, path, save_as_external_data=True, location=external, size_threshold=1024
        )
