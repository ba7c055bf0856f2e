"""Attention of texts, and the queries, keys and scores of a head: calls and results.

Notation: S tokens of a text, T of its target; Q queries and K keys of one head, p features.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from headscope.display import HeatMap, shape_of
from headscope.errors import HeadscopeError, Refused
from headscope.exchange import (
    BINARY,
    FLOAT_BYTES,
    JSON_FLOAT_BYTES,
    Call,
    OnError,
    Raises,
    Returns,
    chained,
)
from headscope.fields import AttentionFields, HeadScoresFields, MapKind
from headscope.inputs import Inputs, Text, items_of, targets_of
from headscope.reading import Tensors, each, texts_of, tokenized
from headscope.results import Info, Target, Tensor, TokenizedText
from headscope.words import merge

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor as TorchTensor

View = Literal["head_view", "model_view"]
Axis = Literal["queries", "keys"]
PREFIXES: dict[MapKind, str] = {"encoder": "", "decoder": "decoder_", "cross": "cross_"}
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

    weights = Tensor('include "weights", without top_k', "attention")
    """Weights `[layers, heads, S, S]`, queries × keys, or the requested part of them."""
    decoder_weights = Tensor('maps "decoder"', "decoder_attention")
    """Weights `[layers, heads, T, T]`; key k is the decoder's input for target token k."""
    cross_weights = Tensor('maps "cross"', "cross_attention")
    """Weights `[layers, heads, T, S]`, over the text's tokens."""
    target_logprobs = Tensor('include "logprobs"')
    """Log-probability of each of the target's tokens, `[T]`."""
    rollout = Tensor('include "rollout"')
    """Attention rollout `[S, S]` through all layers (Abnar & Zuidema 2020)."""
    norms = Tensor('include "norms"')
    """Norms `[layers, heads, S, S]` of the vector that a key adds to a query in a head.

    Kobayashi et al. 2020, https://arxiv.org/abs/2004.10102.
    """
    decoder_norms = Tensor('maps "decoder", include "norms"')
    """Norms `[layers, heads, T, T]` for the decoder's self-attention."""
    cross_norms = Tensor('maps "cross", include "norms"')
    """Norms `[layers, heads, T, S]` of cross-attention's added vectors per source token."""
    norm_rollout = Tensor('include "norm_rollout"')
    """Rollout `[S, S]` through all layers, by norms of the sums of a layer's heads."""

    @cached_property
    def statistics(self) -> dict[str, NDArray[np.floating]]:
        """Statistics `[layers, heads]` by name, such as entropy, distance, confidence and cls."""
        return self._statistics("encoder")

    @cached_property
    def decoder_statistics(self) -> dict[str, NDArray[np.floating]]:
        """Statistics of the decoder's self-attention, likewise."""
        return self._statistics("decoder")

    @cached_property
    def cross_statistics(self) -> dict[str, NDArray[np.floating]]:
        """Statistics of cross-attention, likewise: entropy, confidence, cls and sep."""
        return self._statistics("cross")

    def _statistics(self, kind: MapKind) -> dict[str, NDArray[np.floating]]:
        prefix = f"{PREFIXES[kind]}stats."
        named = {
            name.removeprefix(prefix): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(prefix)
        }
        if not named:
            raise HeadscopeError(f'the reply has no {prefix}entropy: request it (include "stats")')
        return named

    def tokens_of(self, axis: Axis, kind: MapKind = "encoder") -> list[list[int]]:
        """Return the indices of the tokens of each row (`queries`) or column (`keys`) of maps.

        There is one token each, or the tokens of a bin if maps are pooled (`max_size`).
        """
        of_targets = kind == "decoder" or (kind == "cross" and axis == "queries")
        tokens = self.target.tokens if of_targets and self.target else self.tokens
        chosen = self.tensors.get(f"{PREFIXES[kind]}{axis}")
        places = list(range(len(tokens))) if chosen is None else chosen.tolist()
        bins = self.tensors.get(f"{PREFIXES[kind]}bins.{axis}")
        if bins is None:
            return [[place] for place in places]
        return [places[start:end] for start, end in bins.tolist()]

    def label(self, layer: int, head: int) -> str | None:
        """Return what dominates a head, given the layer's and head's indices in the model.

        It is the largest of the head's shares, if that is at least one half and twice the share
        under even attention; else "broad", if the entropy is at least 0.8 · ln S; else None.
        """
        place = self.layers.index(layer), self.heads.index(head)
        shares = {name: float(array[place]) for name, array in self.statistics.items()}
        top = max(LABELS, key=shares.__getitem__)
        size, targets = len(self.tokens), 1
        if top == "sep":  # a text's last token is a separator
            special = zip(self.token_ids, self.offsets, strict=True)
            targets = sum(pair == (self.token_ids[-1], (0, 0)) for pair in special)
        if shares[top] >= max(DOMINANT, ABOVE_EVEN * targets / size):
            return LABELS[top]
        return "broad" if size > 1 and shares["entropy"] >= BROAD * np.log(size) else None

    @cached_property
    def word_weights(self) -> NDArray[np.float32]:
        """Weights of words, `[layers, heads, W, W]`: summed over keys, averaged over queries."""
        self._check_whole("encoder")
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
        as far as they were requested, with equal numbers of layers and heads, as BertViz requires.
        """
        kinds: dict[MapKind, tuple[NDArray[Any], list[int], list[int]]] = {}
        for kind, prefix in PREFIXES.items():
            self._check_whole(kind)
            if f"{prefix}attention" in self.tensors:
                encoder = kind == "encoder"
                layers = self.layers if encoder else self.decoder_layers
                heads = self.heads if encoder else self.decoder_heads
                if view == "head_view":
                    heads = list(range(len(heads)))
                kinds[kind] = self.tensors[f"{prefix}attention"], layers, heads
        if self.target is None:
            weights, all_layers, all_heads = kinds.get("encoder") or (self.weights, [], [])
            arguments: dict[str, Any] = {
                "attention": _maps(weights, all_layers, all_heads),
                "tokens": self.tokens,
                "sentence_b_start": self.sentence_b_start,
            }
        else:
            all_layers = sorted({layer for _, layers, _ in kinds.values() for layer in layers})
            all_heads = sorted({head for _, _, heads in kinds.values() for head in heads})
            size = max(all_layers) + 1, max(all_heads) + 1
            arguments = {f"{kind}_attention": _maps(*own, size) for kind, own in kinds.items()}
            arguments |= {"encoder_tokens": self.tokens, "decoder_tokens": self.target.tokens}
        arguments["include_layers"] = all_layers
        return arguments | ({"include_heads": all_heads} if view == "model_view" else {})

    def heat_map(self, layer: int | None = None, head: int | None = None) -> HeatMap:
        """Return the map of a head, or the mean map of several, as a notebook shows it.

        Args:
            layer: index of the layer in the model; None for the mean over all layers of the reply.
            head: index of the head in the model; None for the mean over all heads of the reply.

        """
        layers = slice(None) if layer is None else [self.layers.index(layer)]
        heads = slice(None) if head is None else [self.heads.index(head)]
        chosen = self.weights[layers][:, heads].astype(np.float32)
        title = f"{_named('layer', self.layers, layer)}, {_named('head', self.heads, head)}"
        queries, keys = (
            tuple(  # the token of each row or column; the first and the last of several
                "…".join(self.tokens[i] for i in dict.fromkeys((own[0], own[-1])))
                for own in self.tokens_of(axis)
            )
            for axis in AXES
        )
        return HeatMap(title, queries, chosen.mean(axis=(0, 1)), keys)

    def to_pandas(self, layer: int | None = None, head: int | None = None) -> DataFrame:
        """Return a table of the map of `heat_map`, queries × keys."""
        return self.heat_map(layer, head).to_pandas()

    def _facts(self) -> list[str]:
        names = dict.fromkeys(name.partition(".")[0] for name in self.tensors)
        return [
            *super()._facts(),
            *(shape_of(n, self.tensors[n].shape) if n in self.tensors else n for n in names),
        ]

    def _repr_html_(self) -> str:
        """Return the notebook's form: the mean map if there are weights, else the tokens."""
        if "attention" not in self.tensors:
            return super()._repr_html_()
        about = f"{self.model} ({self.backend}), {len(self.tokens)} tokens"
        return self.heat_map().html(about)

    def _check_whole(self, kind: MapKind) -> None:
        """Raise a HeadscopeError if maps of a kind are incomplete or pooled."""
        names = {f"{PREFIXES[kind]}{name}" for name in ("queries", "keys", "bins.queries")}
        if names & self.tensors.keys():
            raise HeadscopeError(
                "whole maps are required: request them without queries, keys and max_size"
            )


def _named(kind: str, available: Sequence[int], chosen: int | None) -> str:
    """Return the layer or head of a map, or for a mean map the number of layers or heads."""
    if chosen is None and len(available) > 1:
        return f"mean of {len(available)} {kind}s"
    return f"{kind} {available[0] if chosen is None else chosen}"


def _maps(
    weights: NDArray[Any],
    layers: Sequence[int],
    heads: Sequence[int],
    size: tuple[int, int] | None = None,
) -> list[TorchTensor]:
    """Return a tensor `[1, heads, queries, keys]` per layer, by index; missing maps are zeros.

    `size` is the number of layers and heads of the result, by default enough for the indices.
    """
    import torch

    rows, columns = size or (max(layers) + 1, max(heads) + 1)
    tensors = torch.zeros(rows, 1, columns, *weights.shape[-2:])
    for layer, of_layer in zip(layers, weights, strict=True):
        tensors[layer, 0, list(heads)] = torch.tensor(of_layer, dtype=torch.float32)
    return list(tensors)


def _count(chosen: Sequence[object] | None, most: int) -> int:
    """Return the number of chosen layers, heads or tokens: all of them without a choice."""
    return most if chosen is None else len(chosen)


@overload
def attention(
    inputs: Inputs, *, on_error: Raises = "raise", **fields: Unpack[AttentionFields]
) -> Call[list[Reply]]: ...
@overload
def attention(
    inputs: Inputs, *, on_error: Returns, **fields: Unpack[AttentionFields]
) -> Call[list[Reply | Refused]]: ...
def attention(
    inputs: Inputs, *, on_error: OnError = "raise", **fields: Unpack[AttentionFields]
) -> Call[object]:
    """Return the attention weights of any head of any layer: one reply per input, in order."""
    texts = items_of(inputs)
    targets = fields.pop("targets", None)
    included = fields.get("include", ("weights",))

    def weigh(tokens: int, info: Info) -> int:
        layers = _count(fields.get("layers"), max(info.layers or 0, info.decoder_layers or 0))
        heads = _count(fields.get("heads"), max(info.heads or 0, info.decoder_heads or 0))
        maps = layers * heads * len(fields.get("maps") or ("cross",))
        most, top_k = fields.get("max_size") or tokens, fields.get("top_k")
        rows = min(_count(fields.get("queries"), tokens), most)
        columns = min(_count(fields.get("keys"), tokens), most)
        weights = columns if top_k is None else 2 * min(top_k, tokens)
        row = weights * ("weights" in included) + columns * ("norms" in included)
        others = {*included} - {"weights", "norms"}
        return FLOAT_BYTES * (maps * rows * row + (tokens**2 if others else 0))

    return Call(
        "/attention",
        texts,
        {**fields},
        read_attention,
        chained,
        BINARY,
        targets=() if targets is None else targets_of(targets, len(texts)),
        weigh=weigh,
        on_error=on_error,
    )


def read_attention(reply: tuple[Tensors, Mapping[str, str]], inputs: Sequence[Any]) -> list[Reply]:
    """Read the binary reply of /attention; inputs with targets are pairs of both."""
    metadata = reply[1]
    aimed = "target_tokens" in metadata
    names = ("layers", "heads", *(("decoder_layers", "decoder_heads") if aimed else ()))
    lists = {name: json.loads(metadata[name]) for name in names}
    items = [item for item, _ in inputs] if aimed else inputs
    replies = [Reply(**text, **lists) for text in texts_of(reply, items)]
    if not aimed:
        return replies
    of_targets = (json.loads(metadata[f"target_{name}"]) for name in ("tokens", "offsets"))
    return [
        replace(
            own,
            target=Target(
                text,
                tokens,
                own.tensors.pop("target_token_ids").tolist(),
                [(start, end) for start, end in offsets],
                bool(own.tensors.pop("target_truncated")),
            ),
        )
        for own, (_, text), tokens, offsets in zip(replies, inputs, *of_targets, strict=True)
    ]


@dataclass(frozen=True, eq=False, repr=False)
class HeadScores(TokenizedText):
    """Queries and keys of one head, and the scores that its weights follow from."""

    layer: int
    head: int
    scale: float | None
    """Factor of each product of features in a score; None if scores are not sums of products."""
    queries: list[int]
    """Index of the token of each row."""
    keys: list[int]
    """Index of the token of each column."""
    query_vectors: NDArray[np.float32]
    """`[Q, p]`."""
    key_vectors: NDArray[np.float32]
    """`[K, p]`."""
    scores: NDArray[np.float32]
    """`[Q, K]`."""
    weights: NDArray[np.float32]
    """`[Q, K]`; a row with all keys sums to 1."""

    @property
    def products(self) -> NDArray[np.float32]:
        """Contribution of each feature to each score, `[Q, K, p]`, without relative positions."""
        if self.scale is None:
            raise HeadscopeError("the scores of this model are not sums of products of features")
        products = self.query_vectors[:, None] * self.key_vectors
        return products * np.float32(self.scale)

    def heat_map(self) -> HeatMap:
        """Return the map of the head's weights, as a notebook shows it."""
        queries, keys = (
            tuple(self.tokens[token] for token in axis) for axis in (self.queries, self.keys)
        )
        return HeatMap(f"layer {self.layer}, head {self.head}", queries, self.weights, keys)

    def to_pandas(self, values: Literal["scores", "weights"] = "scores") -> DataFrame:
        """Return a table of the scores or of the weights, queries × keys."""
        return replace(self.heat_map(), weights=getattr(self, values)).to_pandas()

    def _facts(self) -> list[str]:
        head = f"layer {self.layer}, head {self.head}"
        return [*super()._facts(), head, shape_of("scores", self.scores.shape)]

    def _repr_html_(self) -> str:
        return self.heat_map().html(f"{self.model} ({self.backend}), {len(self.tokens)} tokens")


@overload
def head_scores(
    inputs: str | Sequence[Text], *, on_error: Raises = "raise", **fields: Unpack[HeadScoresFields]
) -> Call[list[HeadScores]]: ...
@overload
def head_scores(
    inputs: str | Sequence[Text], *, on_error: Returns, **fields: Unpack[HeadScoresFields]
) -> Call[list[HeadScores | Refused]]: ...
def head_scores(
    inputs: str | Sequence[Text], *, on_error: OnError = "raise", **fields: Unpack[HeadScoresFields]
) -> Call[object]:
    """Return the queries, keys and scores of one head.

    `layer` and `head` are required. There is one result per text or pair, in order.
    """

    def weigh(tokens: int, info: Info) -> int:
        size = (info.hidden_size or 0) // max(info.heads or 0, 1)
        rows, columns = (_count(fields.get(axis), tokens) for axis in AXES)
        return JSON_FLOAT_BYTES * ((rows + columns) * size + 2 * rows * columns)

    return Call(
        "/attention/scores",
        items_of(inputs, pictures=False),
        {**fields},
        read_head_scores,
        chained,
        weigh=weigh,
        on_error=on_error,
    )


def read_head_scores(reply: Any, texts: Sequence[Text]) -> list[HeadScores]:
    """Read one result per text."""
    named = {name: reply[name] for name in ("layer", "head", "scale")}
    scores = []
    for result, text in each(reply["results"], texts):
        tokens = list(range(len(result["tokens"])))
        axes = {axis: result.get(axis, tokens) for axis in ("queries", "keys")}
        rows, columns = map(len, axes.values())
        vectors = {"query_vectors": (rows, -1), "key_vectors": (columns, -1)}
        shapes = vectors | dict.fromkeys(("scores", "weights"), (rows, columns))
        arrays = {
            name: np.array(result[name], np.float32).reshape(shape)
            for name, shape in shapes.items()
        }
        scores.append(tokenized(HeadScores, reply, result, text, **named, **axes, **arrays))
    return scores
