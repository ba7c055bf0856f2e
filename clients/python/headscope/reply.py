"""One text's attention: as arrays, as words, and in BertViz's views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headscope.bertviz_arguments import HeadMaps, View, of_one_text, of_text_and_target
from headscope.display import shape_of
from headscope.errors import HeadscopeError
from headscope.fields import MapKind
from headscope.heat_map import HeatMap
from headscope.map_parts import PREFIXES, Axis, check_whole, names_of, tokens_of
from headscope.results import Target, TokenizedText
from headscope.words import merge

if TYPE_CHECKING:
    from pandas import DataFrame

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
    """One text's attention: S tokens, of the layers and heads that were asked for.

    With a target T tokens of that: row t of its maps belongs to the t-th of them.
    """

    layers: list[int]
    heads: list[int]
    tensors: dict[str, NDArray[Any]]
    """By the binary form's names without the text's number: `attention`, `stats.entropy`, …"""
    target: Target | None = None
    decoder_layers: list[int] = field(default_factory=list)
    """Of the decoder's own maps and of cross-attention."""
    decoder_heads: list[int] = field(default_factory=list)

    @property
    def weights(self) -> NDArray[Any]:
        """`[layers, heads, S, S]`, queries × keys, or the part of them that was asked for."""
        return self._tensor("attention", 'include "weights", without top_k')

    @property
    def decoder_weights(self) -> NDArray[Any]:
        """`[layers, heads, T, T]`; key k is what the decoder reads before it writes token k."""
        return self._tensor("decoder_attention", 'maps "decoder"')

    @property
    def cross_weights(self) -> NDArray[Any]:
        """`[layers, heads, T, S]`, over the text's tokens."""
        return self._tensor("cross_attention", 'maps "cross"')

    @property
    def target_logprobs(self) -> NDArray[np.float32]:
        """The log-probability of each of the target's tokens, `[T]`."""
        return self._tensor("target_logprobs", 'include "logprobs"')

    @property
    def rollout(self) -> NDArray[Any]:
        """`[S, S]`, through all layers (Abnar & Zuidema 2020)."""
        return self._tensor("rollout", 'include "rollout"')

    @property
    def norms(self) -> NDArray[np.float32]:
        """`[layers, heads, S, S]`: length of the vector that a key adds to a query in a head.

        Kobayashi et al. 2020, https://arxiv.org/abs/2004.10102.
        """
        return self._tensor("norms", 'include "norms"')

    @property
    def decoder_norms(self) -> NDArray[np.float32]:
        """`[layers, heads, T, T]`, of the decoder's own heads."""
        return self._tensor("decoder_norms", 'maps "decoder", include "norms"')

    @property
    def cross_norms(self) -> NDArray[np.float32]:
        """`[layers, heads, T, S]`: of what heads of cross-attention add of each source token."""
        return self._tensor("cross_norms", 'maps "cross", include "norms"')

    @property
    def norm_rollout(self) -> NDArray[np.float32]:
        """`[S, S]`, through all layers, by norms of what the heads of each add together."""
        return self._tensor("norm_rollout", 'include "norm_rollout"')

    def tokens_of(self, axis: Axis, kind: MapKind = "encoder") -> list[list[int]]:
        """The places of the tokens that each row (`queries`) or column (`keys`) of maps is of.

        One each, unless maps are pooled (`max_size`): then those of a bin.
        """
        aimed = kind == "decoder" or (kind == "cross" and axis == "queries")
        tokens = self.target.tokens if aimed and self.target else self.tokens
        return tokens_of(self.tensors, kind, axis, len(tokens))

    @cached_property
    def statistics(self) -> dict[str, NDArray[Any]]:
        """`[layers, heads]` by name: entropy, distance, confidence, cls, sep, self, and so on."""
        return self._statistics("stats")

    @cached_property
    def decoder_statistics(self) -> dict[str, NDArray[Any]]:
        """The same of the decoder's own heads."""
        return self._statistics("decoder_stats")

    @cached_property
    def cross_statistics(self) -> dict[str, NDArray[Any]]:
        """`[layers, heads]` by name of cross-attention: entropy, confidence, cls and sep."""
        return self._statistics("cross_stats")

    def label(self, layer: int, head: int) -> str | None:
        """What dominates a head, if anything does, by the numbers the layer and head have.

        The largest of its shares, when it is at least one half and twice what even attention would
        give; else "broad", when its entropy is at least 0.8 · ln S.
        """
        place = self.layers.index(layer), self.heads.index(head)
        found = {name: float(array[place]) for name, array in self.statistics.items()}
        top = max(LABELS, key=found.__getitem__)
        size = len(self.tokens)
        targets = self._separators() if top == "sep" else 1
        if found[top] >= max(DOMINANT, ABOVE_EVEN * targets / size):
            return LABELS[top]
        return "broad" if size > 1 and found["entropy"] >= BROAD * np.log(size) else None

    @cached_property
    def word_weights(self) -> NDArray[np.float32]:
        """`[layers, heads, W, W]`: summed over a target's tokens, averaged over a source's."""
        check_whole(self.tensors, "encoder")
        return merge(self.weights, [word.tokens for word in self.words])

    def head_view(self, **options: Any) -> Any:
        """BertViz's head view; `options` are its own. It numbers a selection of heads from 0."""
        from bertviz import head_view

        return head_view(**(self.to_bertviz("head_view") | options))

    def model_view(self, **options: Any) -> Any:
        """BertViz's model view; `options` are its own."""
        from bertviz import model_view

        return model_view(**(self.to_bertviz("model_view") | options))

    def to_bertviz(self, view: View = "head_view") -> dict[str, Any]:
        """The arguments of one of BertViz's views: `head_view(**reply.to_bertviz())`.

        `attention` is a tensor `[1, heads, S, S]` a layer, by the layers' own numbers, with zeros
        for those that were not asked for. The head view, which shows every head, has the heads of
        the reply; the model view has them at their own numbers, and `include_heads` beside. With a
        target there are `encoder_attention`, `decoder_attention` and `cross_attention`, as far as
        they were asked for.
        """
        for kind in PREFIXES:
            check_whole(self.tensors, kind)
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
        """The map of a head, or the mean over those of the reply, which a notebook shows.

        Args:
            layer: by the number it has in the model; None for the mean over all of the reply.
            head: likewise.

        """
        layers = slice(None) if layer is None else [self.layers.index(layer)]
        heads = slice(None) if head is None else [self.heads.index(head)]
        chosen = self.weights[layers][:, heads].astype(np.float32)
        title = f"{named('layer', self.layers, layer)}, {named('head', self.heads, head)}"
        queries, keys = (names_of(self.tokens_of(axis), self.tokens) for axis in AXES)
        return HeatMap(title, queries, chosen.mean(axis=(0, 1)), keys)

    def to_pandas(self, layer: int | None = None, head: int | None = None) -> DataFrame:
        """Return a table of the map that `heat_map` shows, queries × keys.

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
        """Return what a notebook shows: the mean map where there are weights, else the tokens."""
        if "attention" not in self.tensors:
            return super()._repr_html_()
        about = f"{self.model} ({self.backend}), {len(self.tokens)} tokens"
        return self.heat_map().html(about)

    def _statistics(self, kind: str) -> dict[str, NDArray[Any]]:
        self._tensor(f"{kind}.entropy", 'include "stats"')
        prefix = f"{kind}."
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(prefix)
        }

    def _tensor(self, name: str, how: str) -> NDArray[Any]:
        if name not in self.tensors:
            raise HeadscopeError(f"the reply has no {name}: ask for it ({how})")
        return self.tensors[name]

    def _separators(self) -> int:
        """How many tokens are separators: a text's last token is one."""
        special = zip(self.token_ids, self.offsets, strict=True)
        return sum(pair == (self.token_ids[-1], (0, 0)) for pair in special)


def named(kind: str, there: Sequence[int], asked: int | None) -> str:
    """The one layer or head that a map shows, or of how many it is the mean."""
    if asked is None and len(there) > 1:
        return f"mean of {len(there)} {kind}s"
    return f"{kind} {there[0] if asked is None else asked}"
