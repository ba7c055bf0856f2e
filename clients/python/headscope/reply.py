"""One text's attention: as arrays, as words, and in BertViz's views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headscope.errors import HeadscopeError
from headscope.words import Offset, Word, merge, words_of

if TYPE_CHECKING:
    from torch import Tensor

DOMINANT, ABOVE_EVEN, BROAD = 0.5, 2, 0.8
LABELS = {
    "previous": "previous token",
    "next": "next token",
    "self": "itself",
    "cls": "[CLS] sink",
    "sep": "separator sink",
}


@dataclass(frozen=True, eq=False)
class Reply:
    """One text's attention: S tokens, of the layers and heads that were asked for."""

    model: str
    backend: str
    layers: list[int]
    heads: list[int]
    texts: tuple[str, ...]
    """The caller's: one, or a pair's two."""
    tokens: list[str]
    token_ids: list[int]
    segment_ids: list[int]
    offsets: list[Offset]
    """Code points in the token's own text; `(0, 0)` for special tokens."""
    truncated: bool
    tensors: dict[str, NDArray[Any]]
    """By the binary form's names without the text's number: `attention`, `stats.entropy`, …"""

    @property
    def weights(self) -> NDArray[Any]:
        """`[layers, heads, S, S]`, queries × keys."""
        return self._tensor("attention", 'include "weights", without top_k')

    @property
    def rollout(self) -> NDArray[Any]:
        """`[S, S]`, through all layers (Abnar & Zuidema 2020)."""
        return self._tensor("rollout", 'include "rollout"')

    @cached_property
    def statistics(self) -> dict[str, NDArray[Any]]:
        """`[layers, heads]` by name: entropy, distance, confidence, cls, sep, self, and so on."""
        self._tensor("stats.entropy", 'include "stats"')
        prefix = "stats."
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(prefix)
        }

    @property
    def sentence_b_start(self) -> int | None:
        """Where a pair's second text begins."""
        return self.segment_ids.index(1) if 1 in self.segment_ids else None

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
    def words(self) -> list[Word]:
        """The text's words, special tokens among them."""
        return words_of(self.tokens, self.offsets, self.segment_ids, self.texts)

    @cached_property
    def word_weights(self) -> NDArray[np.float32]:
        """`[layers, heads, W, W]`: summed over a target's tokens, averaged over a source's."""
        return merge(self.weights, [word.tokens for word in self.words])

    def head_view(self, **options: Any) -> Any:
        """BertViz's head view; `options` are its own. It numbers a selection of heads from 0."""
        from bertviz import head_view

        chosen = {"include_layers": self.layers, "sentence_b_start": self.sentence_b_start}
        maps = self._maps(range(len(self.heads)))
        return head_view(maps, self.tokens, **(chosen | options))

    def model_view(self, **options: Any) -> Any:
        """BertViz's model view; `options` are its own."""
        from bertviz import model_view

        chosen = {"include_layers": self.layers, "include_heads": self.heads}
        maps = self._maps(self.heads)
        start = {"sentence_b_start": self.sentence_b_start}
        return model_view(maps, self.tokens, **(chosen | start | options))

    def _maps(self, heads: Sequence[int]) -> list[Tensor]:
        """A tensor `[1, heads, S, S]` a layer, by number; zeros for those that are not here."""
        import torch

        size = len(self.tokens)
        maps = torch.zeros(max(self.layers) + 1, 1, max(heads) + 1, size, size)
        for layer, weights in zip(self.layers, self.weights, strict=True):
            maps[layer, 0, list(heads)] = torch.tensor(weights, dtype=torch.float32)
        return list(maps)

    def _tensor(self, name: str, how: str) -> NDArray[Any]:
        if name not in self.tensors:
            raise HeadscopeError(f"the reply has no {name}: ask for it ({how})")
        return self.tensors[name]

    def _separators(self) -> int:
        """How many tokens are separators: a text's last token is one."""
        special = zip(self.token_ids, self.offsets, strict=True)
        return sum(pair == (self.token_ids[-1], (0, 0)) for pair in special)
