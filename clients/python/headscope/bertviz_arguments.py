"""A reply's maps as the arguments of BertViz's views (https://github.com/jessevig/bertviz)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from headscope.reply import Reply

View = Literal["head_view", "model_view"]


def arguments(reply: Reply, view: View) -> dict[str, Any]:
    """Those of a view of one text, or of a text and its target."""
    if reply.target is None:
        return _of_one_text(reply, view)
    return _of_text_and_target(reply, reply.target.tokens, view)


def _of_one_text(reply: Reply, view: View) -> dict[str, Any]:
    found = {
        "attention": maps(reply.weights, reply.layers, reply.heads),
        "tokens": reply.tokens,
        "sentence_b_start": reply.sentence_b_start,
        "include_layers": reply.layers,
        "include_heads": reply.heads,
    }
    if view == "head_view":
        found["attention"] = maps(reply.weights, reply.layers, range(len(reply.heads)))
        del found["include_heads"]
    return found


def _of_text_and_target(reply: Reply, target_tokens: list[str], view: View) -> dict[str, Any]:
    """Each kind has as many layers and heads as any, as BertViz needs; zeros where it has fewer."""
    kinds = {
        "encoder_attention": ("attention", reply.layers, reply.heads),
        "decoder_attention": ("decoder_attention", reply.decoder_layers, reply.decoder_heads),
        "cross_attention": ("cross_attention", reply.decoder_layers, reply.decoder_heads),
    }
    there = {name: kind for name, kind in kinds.items() if kind[0] in reply.tensors}
    layers = sorted({layer for _, own, _ in there.values() for layer in own})
    heads = sorted({head for _, _, own in there.values() for head in own})
    found: dict[str, Any] = {
        "encoder_tokens": reply.tokens,
        "decoder_tokens": target_tokens,
        "include_layers": layers,
    }
    if view == "head_view":
        heads = list(range(max(len(own) for _, _, own in there.values())))
    else:
        found["include_heads"] = heads
    for name, (tensor, own_layers, own_heads) in there.items():
        places = heads[: len(own_heads)] if view == "head_view" else own_heads
        size = max(layers) + 1, max(heads) + 1
        found[name] = maps(reply.tensors[tensor], own_layers, places, size)
    return found


def maps(
    weights: Any,
    layers: Sequence[int],
    heads: Sequence[int],
    size: tuple[int, int] | None = None,
) -> list[Tensor]:
    """A tensor `[1, heads, queries, keys]` a layer, by number; zeros for those that are not here.

    Args:
        weights: `[layers, heads, queries, keys]`.
        layers: their numbers.
        heads: their places among the heads.
        size: layers and heads of the result; as many as the numbers need when None.

    """
    import torch

    rows, columns = size or (max(layers) + 1, max(heads) + 1)
    found = torch.zeros(rows, 1, columns, *weights.shape[-2:])
    for layer, of_layer in zip(layers, weights, strict=True):
        found[layer, 0, list(heads)] = torch.tensor(of_layer, dtype=torch.float32)
    return list(found)
