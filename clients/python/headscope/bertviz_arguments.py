"""Maps of a reply as arguments of BertViz's views (https://github.com/jessevig/bertviz)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

View = Literal["head_view", "model_view"]


class HeadMaps(NamedTuple):
    """Maps of one kind of attention."""

    weights: NDArray[np.floating]
    """`[layers, heads, queries, keys]`."""
    layers: Sequence[int]
    """Indices of the layers in the model."""
    heads: Sequence[int]


def of_one_text(
    head_maps: HeadMaps, tokens: Sequence[str], sentence_b_start: int | None, view: View
) -> dict[str, Any]:
    """Return the arguments of a view of one text, or of a pair."""
    whole = view == "model_view"
    places = head_maps.heads if whole else range(len(head_maps.heads))
    arguments = {
        "attention": maps(head_maps.weights, head_maps.layers, places),
        "tokens": tokens,
        "sentence_b_start": sentence_b_start,
        "include_layers": head_maps.layers,
    }
    return arguments | ({"include_heads": head_maps.heads} if whole else {})


def of_text_and_target(
    kinds: Mapping[str, HeadMaps], tokens: Sequence[str], target_tokens: Sequence[str], view: View
) -> dict[str, Any]:
    """Return the arguments of a view of a text and its target.

    Each kind gets the same number of layers and heads, as BertViz requires; missing ones are zeros.

    Args:
        kinds: maps of `encoder`, `decoder` and `cross`, as far as they exist.
        tokens: tokens of the text.
        target_tokens: tokens of the target.
        view: name of the view.

    """
    layers = sorted({layer for kind in kinds.values() for layer in kind.layers})
    heads = sorted({head for kind in kinds.values() for head in kind.heads})
    arguments: dict[str, Any] = {
        "encoder_tokens": tokens,
        "decoder_tokens": target_tokens,
        "include_layers": layers,
    }
    if view == "head_view":
        heads = list(range(max(len(kind.heads) for kind in kinds.values())))
    else:
        arguments["include_heads"] = heads
    size = max(layers) + 1, max(heads) + 1
    for name, kind in kinds.items():
        places = heads[: len(kind.heads)] if view == "head_view" else kind.heads
        arguments[f"{name}_attention"] = maps(kind.weights, kind.layers, places, size)
    return arguments


def maps(
    weights: Any,
    layers: Sequence[int],
    heads: Sequence[int],
    size: tuple[int, int] | None = None,
) -> list[Tensor]:
    """Return a tensor `[1, heads, queries, keys]` per layer, by index; missing maps are zeros.

    Args:
        weights: `[layers, heads, queries, keys]`.
        layers: indices of the layers.
        heads: indices of the heads.
        size: number of layers and heads of the result; enough for the indices when None.

    """
    import torch

    rows, columns = size or (max(layers) + 1, max(heads) + 1)
    tensors = torch.zeros(rows, 1, columns, *weights.shape[-2:])
    for layer, of_layer in zip(layers, weights, strict=True):
        tensors[layer, 0, list(heads)] = torch.tensor(of_layer, dtype=torch.float32)
    return list(tensors)
