"""What is said where a foreign graph, somebody else's ONNX export, lacks what is asked for."""

from __future__ import annotations

INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
"""Names of the inputs that a foreign graph may have; the first two it must."""


def not_in_graph(what: str) -> str:
    """One line for whoever asks for more than the last hidden state, with the remedy.

    Args:
        what: is asked for, as a noun.

    """
    return (
        f"this model is a foreign ONNX graph, which gives the last hidden state alone, not {what}: "
        "`headscope export` of its checkpoint in safetensors has it"
    )
