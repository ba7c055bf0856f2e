"""What calls answer with.

Notation: S tokens of one text, H features of a token's vector, D of a text's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headscope.errors import HeadscopeError
from headscope.places import Offset, second_start
from headscope.words import Word, words_of


@dataclass(frozen=True, eq=False)
class TokenizedText:
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


@dataclass(frozen=True, eq=False)
class Target:
    """What a decoder was to have written of a text."""

    text: str
    """The caller's."""
    tokens: list[str]
    token_ids: list[int]
    offsets: list[Offset]
    """Code points in the text; `(0, 0)` for special tokens."""
    truncated: bool


@dataclass(frozen=True, eq=False)
class Encoding(TokenizedText):
    """One text's vectors."""

    tensors: dict[str, NDArray[np.float32]]
    """`embeddings` and `pooled`, as far as they were asked for."""
    layers: list[int] = field(default_factory=list)
    """Numbers of the hidden states, where several were asked for."""

    @property
    def embeddings(self) -> NDArray[np.float32]:
        """A vector a token, `[S, H]`; of several layers `[layers, S, H]`."""
        return self._tensor("embeddings", "tokens")

    @property
    def pooled(self) -> NDArray[np.float32]:
        """The vector of the text, `[D]`; of several layers `[layers, D]`."""
        return self._tensor("pooled", "pooled")

    def _tensor(self, name: str, output: str) -> NDArray[np.float32]:
        if name not in self.tensors:
            raise HeadscopeError(f'the reply has no {name}: ask for it (outputs "{output}")')
        return self.tensors[name]


class Encodings(tuple[Encoding, ...]):
    """The encodings of B texts, in their order."""

    __slots__ = ()

    @property
    def pooled(self) -> NDArray[np.float32]:
        """The vectors of all texts, `[B, D]` or `[layers, B, D]`; of no texts `[0, 0]`."""
        vectors = [one.pooled for one in self]
        return np.stack(vectors, axis=-2) if vectors else np.empty((0, 0), np.float32)


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


@dataclass(frozen=True)
class Rank:
    """One of the texts that were ranked."""

    index: int
    """Of the text in the caller's list."""
    score: float
    text: str


@dataclass(frozen=True, eq=False)
class SparseVector:
    """The weights of n words of a vocabulary."""

    indices: NDArray[np.int64]
    """Token ids, or hashes of bm42, ascending, `[n]`."""
    values: NDArray[np.float32]
    """`[n]`."""


@dataclass(frozen=True)
class Difference:
    """How far a tensor of the engine is from PyTorch's, of all texts the worst."""

    max_abs_diff: float
    min_cosine: float
    atol: float
    rtol: float
    passed: bool
    cosine_at_least: float | None = None
    layer: int | None = None
    """Of a hidden state or of a map."""
    head: int | None = None
    """Of a map."""


@dataclass(frozen=True)
class Verification:
    """Texts through PyTorch and through the engine, compared tensor by tensor."""

    passed: bool
    reference: str
    against: str
    inputs: int
    hidden: tuple[Difference, ...]
    attention: tuple[Difference, ...]
    pooled: Difference
    task: Difference | None
    """Of a model with a task head."""


@dataclass(frozen=True)
class Info:
    """What a service says about a model; see `GET /info`."""

    model_id: str
    version: str
    max_input_length: int
    """Tokens of one text."""
    max_client_batch_size: int
    """Inputs of one request."""
    max_queue_tokens: int
    layers: int | None
    """None where nothing tells those of a foreign graph; so for the next two."""
    heads: int | None
    hidden_size: int | None
    embedding_dimension: int
    engine: str
    provider: str
    precision: str
    backend: str
    status: str
    """`working`, `degraded` or `failed`."""
    fields: Mapping[str, Any]
    """All of the reply, by its names."""
    decoder_layers: int | None = None
    """None without a decoder; so for the next one."""
    decoder_heads: int | None = None


@dataclass(frozen=True)
class ServedModel:
    """One of the models of a service."""

    id: str
    """Its name, for `model` of requests."""
    created: int
    """When its artifact came to be, in seconds since 1970."""
