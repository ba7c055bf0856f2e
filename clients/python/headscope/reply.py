"""Attention of one text: as arrays, as words, and in BertViz's views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headscope.display import HeatMap, shape_of
from headscope.errors import HeadscopeError
from headscope.fields import MapKind
from headscope.results import Target, TokenizedText
from headscope.words import merge

if TYPE_CHECKING:
    from pandas import DataFrame
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


Axis = Literal["queries", "keys"]
PREFIXES: Mapping[MapKind, str] = {"encoder": "", "decoder": "decoder_", "cross": "cross_"}
AXES: tuple[Axis, Axis] = ("queries", "keys")
DOMINANT, ABOVE_EVEN, BROAD = 0.5, 2, 0.8
LABELS = {
    "previous": "previous token",
    "next": "next token",
    "self": "itself",
    "cls": "[CLS] sink",
    "sep": "separator sink",
}


@dataclass(frozen=True, eq=False, repr=False)
class Reply(TokenizedText):
    """Attention of one text of S tokens, for the requested layers and heads.

    With a target of T tokens, row t of its maps belongs to the target's token t.
    """

    layers: list[int]
    heads: list[int]
    tensors: dict[str, NDArray[Any]]
    """Tensors by their names in the binary form, without the text's index: `attention`,
    `stats.entropy`, …"""
    target: Target | None = None
    decoder_layers: list[int] = field(default_factory=list)
    """Layers of the decoder's self-attention and cross-attention."""
    decoder_heads: list[int] = field(default_factory=list)

    @property
    def weights(self) -> NDArray[np.floating]:
        """Weights `[layers, heads, S, S]`, queries × keys, or the requested part of them."""
        return self._tensor("attention", 'include "weights", without top_k')

    @property
    def decoder_weights(self) -> NDArray[np.floating]:
        """Weights `[layers, heads, T, T]`; key k is the decoder's input for target token k."""
        return self._tensor("decoder_attention", 'maps "decoder"')

    @property
    def cross_weights(self) -> NDArray[np.floating]:
        """Weights `[layers, heads, T, S]`, over the text's tokens."""
        return self._tensor("cross_attention", 'maps "cross"')

    @property
    def target_logprobs(self) -> NDArray[np.float32]:
        """Log-probability of each of the target's tokens, `[T]`."""
        return self._tensor("target_logprobs", 'include "logprobs"')

    @property
    def rollout(self) -> NDArray[np.floating]:
        """Attention rollout `[S, S]` through all layers (Abnar & Zuidema 2020)."""
        return self._tensor("rollout", 'include "rollout"')

    @property
    def norms(self) -> NDArray[np.float32]:
        """Norms `[layers, heads, S, S]` of the vector that a key adds to a query in a head.

        Kobayashi et al. 2020, https://arxiv.org/abs/2004.10102.
        """
        return self._tensor("norms", 'include "norms"')

    @property
    def decoder_norms(self) -> NDArray[np.float32]:
        """Norms `[layers, heads, T, T]` for the decoder's self-attention."""
        return self._tensor("decoder_norms", 'maps "decoder", include "norms"')

    @property
    def cross_norms(self) -> NDArray[np.float32]:
        """Norms `[layers, heads, T, S]` of cross-attention's added vectors per source token."""
        return self._tensor("cross_norms", 'maps "cross", include "norms"')

    @property
    def norm_rollout(self) -> NDArray[np.float32]:
        """Rollout `[S, S]` through all layers, by norms of the sums of a layer's heads."""
        return self._tensor("norm_rollout", 'include "norm_rollout"')

    def tokens_of(self, axis: Axis, kind: MapKind = "encoder") -> list[list[int]]:
        """Return the indices of the tokens of each row (`queries`) or column (`keys`) of maps.

        There is one token each, or the tokens of a bin if maps are pooled (`max_size`).
        """
        of_targets = kind == "decoder" or (kind == "cross" and axis == "queries")
        tokens = self.target.tokens if of_targets and self.target else self.tokens
        return _tokens_of(self.tensors, kind, axis, len(tokens))

    @cached_property
    def statistics(self) -> dict[str, NDArray[np.floating]]:
        """Statistics `[layers, heads]` by name, such as entropy, distance, confidence and cls."""
        return self._statistics("stats")

    @cached_property
    def decoder_statistics(self) -> dict[str, NDArray[np.floating]]:
        """Statistics of the decoder's self-attention, likewise."""
        return self._statistics("decoder_stats")

    @cached_property
    def cross_statistics(self) -> dict[str, NDArray[np.floating]]:
        """Statistics of cross-attention, likewise: entropy, confidence, cls and sep."""
        return self._statistics("cross_stats")

    def label(self, layer: int, head: int) -> str | None:
        """Return what dominates a head, given the layer's and head's indices in the model.

        It is the largest of the head's shares, if that is at least one half and twice the share
        under even attention; else "broad", if the entropy is at least 0.8 · ln S; else None.
        """
        place = self.layers.index(layer), self.heads.index(head)
        shares = {name: float(array[place]) for name, array in self.statistics.items()}
        top = max(LABELS, key=shares.__getitem__)
        size = len(self.tokens)
        targets = self._separators() if top == "sep" else 1
        if shares[top] >= max(DOMINANT, ABOVE_EVEN * targets / size):
            return LABELS[top]
        return "broad" if size > 1 and shares["entropy"] >= BROAD * np.log(size) else None

    @cached_property
    def word_weights(self) -> NDArray[np.float32]:
        """Weights of words, `[layers, heads, W, W]`: summed over keys, averaged over queries."""
        _check_whole(self.tensors, "encoder")
        return merge(self.weights, [word.tokens for word in self.words])

    def head_view(self, **options: Any) -> Any:
        """Show BertViz's head view with its `options`. It numbers a selection of heads from 0."""
        from bertviz import head_view

        return head_view(**(self.to_bertviz("head_view") | options))

    def model_view(self, **options: Any) -> Any:
        """Show BertViz's model view with its `options`."""
        from bertviz import model_view

        return model_view(**(self.to_bertviz("model_view") | options))

    def to_bertviz(self, view: View = "head_view") -> dict[str, Any]:
        """Return the arguments of one of BertViz's views: `head_view(**reply.to_bertviz())`.

        `attention` is a tensor `[1, heads, S, S]` per layer, by the layers' indices in the model,
        with zeros for layers that were not requested. The head view, which shows all heads, gets
        the reply's heads; the model view gets them at their own indices, and `include_heads`. With
        a target the arguments are `encoder_attention`, `decoder_attention` and `cross_attention`,
        as far as they were requested.
        """
        for kind in PREFIXES:
            _check_whole(self.tensors, kind)
        if self.target is None:
            maps = HeadMaps(self.weights, self.layers, self.heads)
            return of_one_text(maps, self.tokens, self.sentence_b_start, view)
        decoder = self.decoder_layers, self.decoder_heads
        numbers = {"encoder": (self.layers, self.heads), "decoder": decoder, "cross": decoder}
        kinds: dict[str, HeadMaps] = {
            kind: HeadMaps(weights, *numbers[kind])
            for kind, prefix in PREFIXES.items()
            if (weights := self.tensors.get(f"{prefix}attention")) is not None
        }
        return of_text_and_target(kinds, self.tokens, self.target.tokens, view)

    def heat_map(self, layer: int | None = None, head: int | None = None) -> HeatMap:
        """Return the map of a head, or the mean map of several, as a notebook shows it.

        Args:
            layer: index of the layer in the model; None for the mean over all layers of the reply.
            head: index of the head in the model; None for the mean over all heads of the reply.

        """
        layers = slice(None) if layer is None else [self.layers.index(layer)]
        heads = slice(None) if head is None else [self.heads.index(head)]
        chosen = self.weights[layers][:, heads].astype(np.float32)
        title = f"{named('layer', self.layers, layer)}, {named('head', self.heads, head)}"
        queries, keys = (_names_of(self.tokens_of(axis), self.tokens) for axis in AXES)
        return HeatMap(title, queries, chosen.mean(axis=(0, 1)), keys)

    def to_pandas(self, layer: int | None = None, head: int | None = None) -> DataFrame:
        """Return a table of the map of `heat_map`, queries × keys.

        Raises:
            ImportError: pandas is not installed.

        """
        return self.heat_map(layer, head).to_pandas()

    def _facts(self) -> list[str]:
        names = dict.fromkeys(name.partition(".")[0] for name in self.tensors)
        shapes = {name: self.tensors[name].shape for name in names if name in self.tensors}
        named = [shape_of(name, shapes[name]) if name in shapes else name for name in names]
        return [*super()._facts(), *named]

    def _repr_html_(self) -> str:
        """Return the notebook's form: the mean map if there are weights, else the tokens."""
        if "attention" not in self.tensors:
            return super()._repr_html_()
        about = f"{self.model} ({self.backend}), {len(self.tokens)} tokens"
        return self.heat_map().html(about)

    def _statistics(self, kind: str) -> dict[str, NDArray[np.floating]]:
        self._tensor(f"{kind}.entropy", 'include "stats"')
        prefix = f"{kind}."
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(prefix)
        }

    def _tensor(self, name: str, how: str) -> NDArray[Any]:
        if name not in self.tensors:
            raise HeadscopeError(f"the reply has no {name}: request it ({how})")
        return self.tensors[name]

    def _separators(self) -> int:
        """Return the number of separators among the tokens; a text's last token is one."""
        special = zip(self.token_ids, self.offsets, strict=True)
        return sum(pair == (self.token_ids[-1], (0, 0)) for pair in special)


def named(kind: str, available: Sequence[int], chosen: int | None) -> str:
    """Return the layer or head of a map, or for a mean map the number of layers or heads."""
    if chosen is None and len(available) > 1:
        return f"mean of {len(available)} {kind}s"
    return f"{kind} {available[0] if chosen is None else chosen}"


def _tokens_of(
    tensors: Mapping[str, NDArray[np.generic]], kind: MapKind, axis: Axis, size: int
) -> list[list[int]]:
    """Return the tokens of each of `size` rows or columns: several only in a pooled map."""
    prefix = PREFIXES[kind]
    chosen, bins = tensors.get(f"{prefix}{axis}"), tensors.get(f"{prefix}bins.{axis}")
    places = list(range(size)) if chosen is None else chosen.tolist()
    if bins is None:
        return [[place] for place in places]
    return [places[start:end] for start, end in bins.tolist()]


def _check_whole(tensors: Mapping[str, NDArray[np.generic]], kind: MapKind) -> None:
    """Raise an error if maps of a kind are incomplete or pooled.

    Raises:
        HeadscopeError: the maps are incomplete or pooled.

    """
    names = {f"{PREFIXES[kind]}{name}" for name in ("queries", "keys", "bins.queries")}
    if names & tensors.keys():
        raise HeadscopeError(
            "whole maps are required: request them without queries, keys and max_size"
        )


def _names_of(groups: Sequence[Sequence[int]], tokens: Sequence[str]) -> tuple[str, ...]:
    """Return the token of each row or column; the first and the last of several."""
    return tuple("…".join(tokens[i] for i in dict.fromkeys((own[0], own[-1]))) for own in groups)
