"""A reply's maps as the arguments of BertViz's views (https://github.com/jessevig/bertviz)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

View = Literal["head_view", "model_view"]


class HeadMaps(NamedTuple):
    """The maps of one kind of attention."""

    weights: NDArray[Any]
    """`[layers, heads, queries, keys]`."""
    layers: Sequence[int]
    """By the numbers that they have in the model."""
    heads: Sequence[int]


def of_one_text(
    found: HeadMaps, tokens: Sequence[str], sentence_b_start: int | None, view: View
) -> dict[str, Any]:
    """The arguments of a view of one text, or of a pair."""
    whole = view == "model_view"
    places = found.heads if whole else range(len(found.heads))
    arguments = {
        "attention": maps(found.weights, found.layers, places),
        "tokens": tokens,
        "sentence_b_start": sentence_b_start,
        "include_layers": found.layers,
    }
    return arguments | ({"include_heads": found.heads} if whole else {})


def of_text_and_target(
    kinds: Mapping[str, HeadMaps], tokens: Sequence[str], target_tokens: Sequence[str], view: View
) -> dict[str, Any]:
    """The arguments of a view of a text and its target.

    Each kind has as many layers and heads as any, as BertViz needs; zeros where it has fewer.

    Args:
        kinds: what there is of `encoder`, `decoder` and `cross`.
        tokens: the text's.
        target_tokens: the target's.
        view: which one.

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
