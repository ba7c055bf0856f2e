"""The ONNX contract: names, dtypes and axes of every graph in an artifact.

Two graphs make up an artifact:

* `encoder.onnx`: token ids to all hidden states;
* `attention.onnx`: one layer's input and the asked heads' parameters to their attention weights.

Axes that are strings are dynamic.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from model.config import EncoderConfig

Dtype = Literal["int64", "float32"]
GraphName = Literal["encoder", "attention"]


class TensorSpec(BaseModel):
    """One input or output of a graph."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    dtype: Dtype
    axes: tuple[int | str, ...]


class GraphSignature(BaseModel):
    """Inputs and outputs of one graph, in order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def hidden_state_name(layer: int) -> str:
    """The encoder graph's output that holds hidden state `layer`, 0 … L."""
    return f"hidden_state.{layer}"


def head_parameter_name(parameter: str, layer: int) -> str:
    """The tensor in `heads.safetensors` that feeds `parameter` for `layer`; axis 0 is heads."""
    return f"{parameter}.{layer}"


def encoder_signature(config: EncoderConfig) -> GraphSignature:
    """A packed batch → `hidden_state.0 … L`, `[T, H]` each (see `model.batch`)."""
    grid = {"padded_index": ("batch", "sequence")}
    names = ("input_ids", "token_type_ids", "position_ids", "padded_index", "packed_index")
    return GraphSignature(
        inputs=tuple(
            TensorSpec(name=name, dtype="int64", axes=grid.get(name, ("tokens",))) for name in names
        ),
        outputs=tuple(
            TensorSpec(
                name=hidden_state_name(layer), dtype="float32", axes=("tokens", config.hidden_size)
            )
            for layer in range(config.num_hidden_layers + 1)
        ),
    )


def attention_signature(
    config: EncoderConfig, parameters: dict[str, tuple[int, ...]]
) -> GraphSignature:
    """`hidden_state` `[B, S, H]` and parameters `[heads, …]` → `attention` `[B, heads, S, S]`.

    Args:
        config: the encoder's.
        parameters: name → shape of one head's parameter.

    """
    hidden = TensorSpec(
        name="hidden_state", dtype="float32", axes=("batch", "sequence", config.hidden_size)
    )
    heads = [
        TensorSpec(name=name, dtype="float32", axes=("heads", *shape))
        for name, shape in parameters.items()
    ]
    weights = TensorSpec(
        name="attention", dtype="float32", axes=("batch", "heads", "sequence", "sequence")
    )
    return GraphSignature(inputs=(hidden, *heads), outputs=(weights,))
