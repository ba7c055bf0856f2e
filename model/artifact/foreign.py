"""What is said where a foreign graph, somebody else's ONNX export, lacks what is asked for."""

from __future__ import annotations

INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
"""Names of the inputs that a foreign graph may have; the first two it must."""


def not_in_graph(what: str, *, maps: bool = False) -> str:
    """One line for whoever asks for more than a graph gives, with the remedy.

    Args:
        what: is asked for, as a noun.
        maps: whether it gives attention weights beside the last hidden state.

    """
    gives = "the last hidden state and attention weights" if maps else "the last hidden state"
    return (
        f"this model is a foreign ONNX graph, which gives {gives} alone, not {what}: "
        "`headscope export` of its checkpoint in safetensors has it"
    )
