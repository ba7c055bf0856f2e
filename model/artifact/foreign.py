"""Foreign graphs (ONNX exports by other tools): their inputs, and the error of missing outputs."""

from __future__ import annotations

INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
"""Names of a foreign graph's possible inputs; the first two are required."""


def not_in_graph(what: str, *, maps: bool = False) -> str:
    """Return an error message, with the remedy, for a request that a foreign graph cannot answer.

    Args:
        what: the missing output, as a noun.
        maps: whether the graph gives attention weights beside the last hidden state.

    """
    gives = "the last hidden state and attention weights" if maps else "the last hidden state"
    return (
        f"this model is a foreign ONNX graph, which gives {gives} alone, not {what}: "
        "`headscope export` of its checkpoint in safetensors has it"
    )
