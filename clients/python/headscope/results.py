"""Results of calls.

Notation: S tokens of one text, H features of a token's vector, D of a text's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from headscope.display import (
    LONG,
    HeatMap,
    Shown,
    box,
    frame,
    lines,
    shape_of,
    short,
    start_of,
    table,
    vectors_frame,
)
from headscope.errors import HeadscopeError
from headscope.words import Offset, Word, second_start, words_of

if TYPE_CHECKING:
    from pandas import DataFrame

MAX_ROWS = 10
"""Maximum number of texts of a list that a notebook shows."""


@dataclass(frozen=True, eq=False, repr=False)
class TokenizedText(Shown):
    """Text or pair of texts, as the encoder reads it."""

    model: str
    backend: str
    texts: tuple[str, ...]
    """Texts of the caller: one, or two of a pair; the name of a picture."""
    tokens: list[str]
    token_ids: list[int]
    segment_ids: list[int]
    offsets: list[Offset]
    """Code points in the token's own text; `(0, 0)` for special tokens and patches."""
    truncated: bool
    grid: tuple[int, int] | None = field(default=None, kw_only=True)
    """Rows and columns of a picture's patches, which follow its special tokens; None for a text."""
    size: tuple[int, int] | None = field(default=None, kw_only=True)
    """Width and height of a picture, as it is displayed."""
    crop: tuple[float, float, float, float] | None = field(default=None, kw_only=True)
    """Left, top, right and bottom of the part of a picture that the model sees."""
    tower: Literal["text", "vision"] | None = field(default=None, kw_only=True)
    """Tower of the input, of a model with two towers."""

    @property
    def sentence_b_start(self) -> int | None:
        """Index of the first token of a pair's second part; None for a single text."""
        return second_start(self.tokens, self.offsets, self.segment_ids, self.texts)

    @cached_property
    def words(self) -> list[Word]:
        """Words with their tokens, including special tokens; patches of a picture."""
        if self.grid is None:
            return words_of(self.tokens, self.offsets, self.segment_ids, self.texts)
        special = len(self.tokens) - self.grid[0] * self.grid[1]
        return [Word(token, [i], 0, i < special) for i, token in enumerate(self.tokens)]

    def _facts(self) -> list[str]:
        cut = ["truncated"] if self.truncated else []
        return [*map(short, self.texts), f"{len(self.tokens)} tokens", *cut]

    def _repr_html_(self) -> str:
        """Return the notebook's form: the tokens."""
        about = f"{self.model} ({self.backend}), {self._about()}"
        return HeatMap(about, tuple(self.tokens), None).html()

    def _about(self) -> str:
        """Return the facts without the texts."""
        return ", ".join(self._facts()[len(self.texts) :])


@dataclass(frozen=True, eq=False, repr=False)
class Target(Shown):
    """Target text that a decoder reads for a text."""

    text: str
    """Text of the caller."""
    tokens: list[str]
    token_ids: list[int]
    offsets: list[Offset]
    """Code points in the text; `(0, 0)` for special tokens."""
    truncated: bool

    def _facts(self) -> list[str]:
        return [short(self.text), f"{len(self.tokens)} tokens"]


@dataclass(frozen=True, eq=False, repr=False)
class Encoding(TokenizedText):
    """Vectors of one text."""

    tensors: dict[str, NDArray[Any]]
    """Tensors `embeddings`, `pooled` and others, as far as they were requested."""
    layers: list[int] = field(default_factory=list)
    """Indices of the hidden states, if several were requested."""
    spans: list[Offset] | None = None
    """Code points of each span or chunk in the text; None if none were requested."""
    windows: int | None = None
    """Number of windows in which the text was encoded, with `overflow` "windows"."""

    @property
    def span_vectors(self) -> NDArray[Any]:
        """Vector of each span or chunk, `[n, D]`; for several layers `[layers, n, D]`."""
        return self._tensor("span_vectors", "`spans` or `chunk`")

    @property
    def embeddings(self) -> NDArray[np.float32]:
        """Vectors of the tokens, `[S, H]`; for several layers `[layers, S, H]`."""
        return self._tensor("embeddings", 'outputs "tokens"')

    @property
    def pooled(self) -> NDArray[Any]:
        """Vector of the text, `[D]`, of `vector_type`; for several layers `[layers, D]`."""
        return self._tensor("pooled", 'outputs "pooled"')

    @property
    def vector_ranges(self) -> NDArray[np.float32]:
        """Lowest and highest value of each feature, `[2, D]`, for `vector_type` int8 and uint8."""
        return self._tensor("vector_ranges", 'vector_type "int8" or "uint8"')

    @property
    def sparse(self) -> SparseVector:
        """Sparse vector of the text."""
        indices = self._tensor("sparse_indices", 'outputs "sparse"')
        return SparseVector(indices.astype(np.int64), self.tensors["sparse_values"])

    @property
    def multivector(self) -> NDArray[np.float32]:
        """Vectors of late interaction, `[n, D]`, without the vectors of skipped tokens."""
        return self._tensor("multivector", 'outputs "multivector"')

    def to_pandas(self) -> DataFrame:
        """Return a table with a row per token's vector; for several layers, indexed by layer.

        Raises:
            ImportError: pandas is not installed.
            HeadscopeError: the reply has no vectors of tokens.

        """
        return vectors_frame(self.embeddings, self.tokens, self.layers)

    def _facts(self) -> list[str]:
        tensors = [shape_of(name, tensor.shape) for name, tensor in self.tensors.items()]
        return [*super()._facts(), *tensors]

    def _tensor(self, name: str, how: str) -> NDArray[Any]:
        if name not in self.tensors:
            raise HeadscopeError(f"the reply has no {name}: request it ({how})")
        return self.tensors[name]


class Encodings(Shown, tuple[Encoding, ...]):
    """Encodings of B texts, in order."""

    __slots__ = ()

    @property
    def pooled(self) -> NDArray[Any]:
        """Vectors of all texts, `[B, D]` or `[layers, B, D]`; `[0, 0]` without texts."""
        vectors = [encoding.pooled for encoding in self]
        return np.stack(vectors, axis=-2) if vectors else np.empty((0, 0), np.float32)

    @property
    def span_vectors(self) -> NDArray[Any]:
        """Vectors of the spans or chunks of all texts, `[K, D]` or `[layers, K, D]`."""
        vectors = [encoding.span_vectors for encoding in self]
        return np.concatenate(vectors, axis=-2) if vectors else np.empty((0, 0), np.float32)

    def to_pandas(self) -> DataFrame:
        """Return a table with a row per text's vector; for several layers, indexed by layer.

        Raises:
            ImportError: pandas is not installed.
            HeadscopeError: the reply has no vectors of texts.

        """
        texts = [" | ".join(encoding.texts) for encoding in self]
        return vectors_frame(self.pooled, texts, self[0].layers if self else ())

    def _facts(self) -> list[str]:
        pooled = bool(self) and all("pooled" in encoding.tensors for encoding in self)
        shape = [shape_of("pooled", self.pooled.shape)] if pooled else []
        return [
            f"{len(self)} texts",
            f"{sum(len(encoding.tokens) for encoding in self)} tokens",
            *shape,
        ]

    def _repr_html_(self) -> str:
        """Return the notebook's form: a row for each of the first texts."""
        omission = [f"the first {MAX_ROWS} of {len(self)} texts"] if len(self) > MAX_ROWS else []
        rows = [
            (escape(" | ".join(start_of(text, LONG) for text in own.texts)), escape(own._about()))
            for own in self[:MAX_ROWS]
        ]
        return box([lines([", ".join(self._facts()), *omission]), table(("text", ""), rows)])


@dataclass(frozen=True)
class Label:
    """Label of a text, and its score."""

    score: float
    label: str


@dataclass(frozen=True)
class Span(Label):
    """Span of a text with a label: characters `start` to `end`, which are `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, repr=False)
class Rank(Shown):
    """Rank of one text among several."""

    index: int
    """Index of the text in the caller's list."""
    score: float
    text: str

    def _facts(self) -> list[str]:
        return [f"index={self.index}", f"score={self.score:.4f}", f"text={short(self.text)}"]


@dataclass(frozen=True, eq=False, repr=False)
class SparseVector(Shown):
    """Weights of n words of a vocabulary."""

    indices: NDArray[np.int64]
    """Token ids, or hashes of BM42, ascending, `[n]`."""
    values: NDArray[np.float32]
    """Weights `[n]`."""

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
