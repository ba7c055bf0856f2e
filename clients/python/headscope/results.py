"""What calls answer with.

Notation: S tokens of one text, H features of a token's vector, D of a text's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headscope.display import LONG, Shown, box, lines, shape_of, short, start_of, table
from headscope.errors import HeadscopeError
from headscope.heat_map import HeatMap
from headscope.places import Offset, second_start
from headscope.tables import frame, vectors_frame
from headscope.words import Word, words_of

if TYPE_CHECKING:
    from pandas import DataFrame

MAX_ROWS = 10
"""Texts of a list that a notebook shows."""


@dataclass(frozen=True, eq=False, repr=False)
class TokenizedText(Shown):
    """One text, or one pair, as the encoder saw it."""

    model: str
    backend: str
    texts: tuple[str, ...]
    """The caller's: one, or a pair's two."""
    tokens: list[str]
    token_ids: list[int]
    segment_ids: list[int]
    offsets: list[Offset]
    """Code points in the token's own text; `(0, 0)` for special tokens."""
    truncated: bool

    @property
    def sentence_b_start(self) -> int | None:
        """The index of the first token of a pair's second part; None of one text."""
        return second_start(self.tokens, self.offsets, self.segment_ids, self.texts)

    @cached_property
    def words(self) -> list[Word]:
        """The words with their tokens, special tokens among them."""
        return words_of(self.tokens, self.offsets, self.segment_ids, self.texts)

    def _facts(self) -> list[str]:
        cut = ["truncated"] if self.truncated else []
        return [*map(short, self.texts), f"{len(self.tokens)} tokens", *cut]

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the tokens."""
        about = f"{self.model} ({self.backend}), {self._about()}"
        return HeatMap(about, tuple(self.tokens), None).html()

    def _about(self) -> str:
        """Return the facts without the texts."""
        return ", ".join(self._facts()[len(self.texts) :])


@dataclass(frozen=True, eq=False, repr=False)
class Target(Shown):
    """What a decoder was to have written of a text."""

    text: str
    """The caller's."""
    tokens: list[str]
    token_ids: list[int]
    offsets: list[Offset]
    """Code points in the text; `(0, 0)` for special tokens."""
    truncated: bool

    def _facts(self) -> list[str]:
        return [short(self.text), f"{len(self.tokens)} tokens"]


@dataclass(frozen=True, eq=False, repr=False)
class Encoding(TokenizedText):
    """One text's vectors."""

    tensors: dict[str, NDArray[np.float32]]
    """`embeddings` and `pooled`, as far as they were asked for."""
    layers: list[int] = field(default_factory=list)
    """Numbers of the hidden states, where several were asked for."""

    @property
    def embeddings(self) -> NDArray[np.float32]:
        """A vector a token, `[S, H]`; of several layers `[layers, S, H]`."""
        return self._tensor("embeddings", 'outputs "tokens"')

    @property
    def pooled(self) -> NDArray[np.float32]:
        """The vector of the text, `[D]`; of several layers `[layers, D]`."""
        return self._tensor("pooled", 'outputs "pooled"')

    @property
    def attended(self) -> NDArray[np.float32]:
        """Vectors that the heads of the layer before add, like `embeddings`."""
        return self._tensor("attended", 'include "attended"')

    @property
    def residual(self) -> NDArray[np.float32]:
        """States that the feed-forward part of that layer reads, like `embeddings`."""
        return self._tensor("residual", 'include "residual"')

    @property
    def mlp(self) -> NDArray[np.float32]:
        """Vectors that the feed-forward part of that layer adds, like `embeddings`."""
        return self._tensor("mlp", 'include "mlp"')

    def to_pandas(self) -> DataFrame:
        """Return a table of the tokens' vectors, a row a token; of several layers by layer.

        Raises:
            ImportError: pandas is not installed.
            HeadscopeError: the reply has no vectors of tokens.

        """
        return vectors_frame(self.embeddings, self.tokens, self.layers)

    def _facts(self) -> list[str]:
        tensors = [shape_of(name, tensor.shape) for name, tensor in self.tensors.items()]
        return [*super()._facts(), *tensors]

    def _tensor(self, name: str, how: str) -> NDArray[np.float32]:
        if name not in self.tensors:
            raise HeadscopeError(f"the reply has no {name}: ask for it ({how})")
        return self.tensors[name]


class Encodings(Shown, tuple[Encoding, ...]):
    """The encodings of B texts, in their order."""

    __slots__ = ()

    @property
    def pooled(self) -> NDArray[np.float32]:
        """The vectors of all texts, `[B, D]` or `[layers, B, D]`; of no texts `[0, 0]`."""
        vectors = [one.pooled for one in self]
        return np.stack(vectors, axis=-2) if vectors else np.empty((0, 0), np.float32)

    def to_pandas(self) -> DataFrame:
        """Return a table of the texts' vectors, a row a text; of several layers by layer.

        Raises:
            ImportError: pandas is not installed.
            HeadscopeError: the reply has no vectors of texts.

        """
        texts = [" | ".join(one.texts) for one in self]
        return vectors_frame(self.pooled, texts, self[0].layers if self else ())

    def _facts(self) -> list[str]:
        pooled = bool(self) and all("pooled" in one.tensors for one in self)
        shape = [shape_of("pooled", self.pooled.shape)] if pooled else []
        return [f"{len(self)} texts", f"{sum(len(one.tokens) for one in self)} tokens", *shape]

    def _repr_html_(self) -> str:
        """Return what a notebook shows: a row for each of the first texts."""
        more = [f"the first {MAX_ROWS} of {len(self)} texts"] if len(self) > MAX_ROWS else []
        rows = [
            (escape(" | ".join(start_of(text, LONG) for text in one.texts)), escape(one._about()))
            for one in self[:MAX_ROWS]
        ]
        return box([lines([", ".join(self._facts()), *more]), table(("text", ""), rows)])


@dataclass(frozen=True)
class Label:
    """A label of a text, and its score."""

    score: float
    label: str


@dataclass(frozen=True)
class Span(Label):
    """Characters `start` to `end` of a text, of which `text` is that part, and their label."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, repr=False)
class Rank(Shown):
    """One of the texts that were ranked."""

    index: int
    """Of the text in the caller's list."""
    score: float
    text: str

    def _facts(self) -> list[str]:
        return [f"index={self.index}", f"score={self.score:.4f}", f"text={short(self.text)}"]


@dataclass(frozen=True, eq=False, repr=False)
class SparseVector(Shown):
    """The weights of n words of a vocabulary."""

    indices: NDArray[np.int64]
    """Token ids, or hashes of bm42, ascending, `[n]`."""
    values: NDArray[np.float32]
    """`[n]`."""

    def to_pandas(self) -> DataFrame:
        """Return a table of indices and values.

        Raises:
            ImportError: pandas is not installed.

        """
        return frame({"index": self.indices, "value": self.values})

    def _facts(self) -> list[str]:
        words = [f"{len(self.indices)} words"]
        if not len(self.indices):
            return words
        top = int(self.values.argmax())
        return [*words, f"largest {self.values[top]:.3f} at {self.indices[top]}"]
