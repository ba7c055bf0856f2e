"""The encoder and its attention as ONNX graphs.

Graphs are exported from the PyTorch modules, never written by hand, and carry no stack traces,
no paths and no times: the same module gives the same bytes wherever it is exported.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn

from model.artifact.signature import (
    Float,
    GraphSignature,
    attention_signature,
    device_attention_signature,
    device_pooling_signature,
    encoder_signature,
)
from model.attention_weights import Heads, attention_weights
from model.config import EncoderConfig
from model.encoder import Encoder, Layer
from model.errors import ArtifactError
from model.packing import PackedBatch

OPSET = 20


class HiddenStates(nn.Module):
    """The encoder graph: a packed batch to the tuple of all hidden states."""

    def __init__(self, encoder: Encoder, *, three_axes: bool) -> None:
        """Compute tokens as `[T, H]`, or with three axes as `[1, T, H]`."""
        super().__init__()
        self.encoder = encoder
        self.three_axes = three_axes

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The inputs of a packed batch and a head mask → L + 1 tensors `[T, H]`."""
        *packed, head_mask = inputs
        batch = PackedBatch(*packed)
        if self.three_axes:
            batch = batch._replace(
                input_ids=batch.input_ids[None],
                token_type_ids=batch.token_type_ids[None],
                position_ids=batch.position_ids[None],
            )
        head_mask = head_mask.to(self.encoder.embeddings.word.weight.dtype)
        states = self.encoder(batch, head_mask).hidden_states
        return tuple(state.squeeze(0) for state in states) if self.three_axes else states


class HeadWeights(nn.Module):
    """The attention graph: a layer's inputs and n heads' parameters to n maps.

    It holds no weights of its own, so one graph serves every head of every layer.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.parameter_names = list(one_head_shapes(config))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Query states `[B, T, H]`, key states `[B, S, H]`, parameters `[n, …]` → `[B, n, T, S]`.

        The parameters are those of `one_head_shapes`, in that order.
        """
        query_states, key_states, *parameters = inputs
        heads = Heads.from_parameters(
            dict(zip(self.parameter_names, parameters, strict=True)),
            self.config.attention_score,
            self.config.attention_normalizer,
        )
        return attention_weights(heads, query_states, key_states, in_float32=True)


class DeviceHeadWeights(HeadWeights):
    """The same on a device, where the parameters of all N heads of a layer stay."""

    def forward(self, *inputs: Tensor) -> Tensor:
        """Float32 states `[T, H]` and `[S, H]`, heads `[n]`, parameters `[N, …]` → `[n, T, S]`."""
        query_states, key_states, heads, *every = inputs
        asked = [torch.index_select(parameters, 0, heads) for parameters in every]
        states = [state.to(asked[0].dtype)[None] for state in (query_states, key_states)]
        return super().forward(*states, *asked)[0]


class DevicePooling(nn.Module):
    """Sets of rows of a hidden state to one vector each, on a device where the state stays.

    The mean of one row is that row, so this also takes the first or the last token of a text, and
    single rows as they are.
    """

    def forward(self, *inputs: Tensor) -> Tensor:
        """`[T, H]` and, for each set, its place, its mode and its normalisation → `[n, H]`.

        After the hidden state come `first_row` and `row_count` `[n]`; `columns`, 0 … P−1, P the
        largest count; `maximum` `[n]`, 0 for the mean; `unit_features` `[n]`, of which so many
        features become a unit vector, 0 for none.
        """
        hidden_state, first_row, row_count, columns, maximum, unit_features = inputs
        real = columns[None] < row_count[:, None]  # [n, P]
        rows = torch.where(real, first_row[:, None] + columns[None], 0)
        tokens = torch.index_select(hidden_state, 0, rows.flatten()).float()
        tokens = tokens.reshape(*rows.shape, -1)  # [n, P, H]
        real = real[..., None]
        mean = torch.where(real, tokens, 0.0).sum(dim=1) / row_count[:, None].float()
        largest = torch.where(real, tokens, torch.finfo(torch.float32).min).amax(dim=1)
        vectors = torch.where(maximum[:, None] > 0, largest, mean)
        features = torch.arange(hidden_state.shape[1])
        counted = torch.where(features < unit_features[:, None], vectors, 0.0)
        norm = counted.square().sum(dim=1, keepdim=True).sqrt().clamp_min(1e-12)
        return torch.where(unit_features[:, None] > 0, vectors / norm, vectors)


def one_head_shapes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Name → shape of one head's parameter, in the attention graph's order."""
    with torch.device("meta"):
        attention = Layer(config).attention
    return {name: tuple(each.shape[1:]) for name, each in attention.head_parameters().items()}


def export_encoder(
    encoder: Encoder, dtype: Float = "float32", *, three_axes: bool
) -> onnx.ModelProto:
    """The encoder graph, with dynamic tokens, batch and sequence axes; see `HiddenStates`."""
    signature = encoder_signature(encoder.config, dtype)
    if dtype == "float16":
        encoder = copy.deepcopy(encoder).half()
    graph = HiddenStates(encoder, three_axes=three_axes).eval()
    return to_onnx(graph, example_of(signature), signature)


def export_attention(config: EncoderConfig) -> onnx.ModelProto:
    """The attention graph, with dynamic batch, queries, keys and heads axes."""
    signature = attention_signature(config, one_head_shapes(config))
    return to_onnx(HeadWeights(config).eval(), example_of(signature), signature)


def export_device_attention(config: EncoderConfig, dtype: Float) -> onnx.ModelProto:
    """The attention graph for a device, with dynamic queries, keys and heads axes."""
    signature = device_attention_signature(config, one_head_shapes(config), dtype)
    return to_onnx(DeviceHeadWeights(config).eval(), example_of(signature), signature)


def export_device_pooling(config: EncoderConfig, dtype: Float) -> onnx.ModelProto:
    """The pooling graph for a device; every axis but that of the features is dynamic."""
    signature = device_pooling_signature(config, dtype)
    return to_onnx(DevicePooling().eval(), example_of(signature), signature)


def example_of(signature: GraphSignature) -> tuple[Tensor, ...]:
    """Inputs of some size on every dynamic axis, each different from 1 and from the others.

    Each is a tensor of its own: the exporter would make a shared one a single input.
    """
    sizes = {
        "tokens": 7,
        "batch": 2,
        "sequence": 5,
        "queries": 8,
        "keys": 9,
        "heads": 3,
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
