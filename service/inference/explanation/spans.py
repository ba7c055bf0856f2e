"""Spans of a text that are occluded as a whole: its tokens, words or sentences.

`service.inference.words` defines words. A sentence ends after `.`, `!`, `?` or `…` and the closing
quotes and brackets that follow, if white space comes next; after `。`, `！`, `？` or `｡`, also
without it; and at the end of a line. `.` and `…` before a lower-case letter do not end a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from model.numerics.pooling import PoolingModes, PoolingName
from model.numerics.similarity import spearman
from model.runtimes.capabilities import Decomposition
from service.engines.contract import Floats
from service.errors import NoEmbeddings, Unprocessable
from service.inference.core import Inference
from service.inference.tokenization.text import Offset, Text
from service.inference.words import split_words, tokens_of

SpanKind = Literal["tokens", "words", "sentences"]
_SENTENCE_END = re.compile(r"""[.!?…]+["'”’»)\]]*(?=\s)|[。！？｡]+[」』”’）]*|[\n\r\u2028\u2029]""")
_NEXT_CHARACTER = re.compile(r"\S")


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text, and the tokens that overlap it."""

    start: int
    """Offset of its first character, in code points."""
    end: int
    tokens: tuple[int, ...]
    """Indices of its tokens, ascending; at least one."""


@dataclass(frozen=True, slots=True)
class Block:
    """A rectangle of a picture's patches, and their tokens."""

    rows: tuple[int, int]
    """First row, and the row after the last."""
    columns: tuple[int, int]
    tokens: tuple[int, ...]
    """Indices of its tokens, ascending."""


AnySpan = Span | Block


def blocks_of(picture: Text, edge: int) -> list[Block]:
    """Split a picture into squares of patches, row by row, smaller ones at its right and bottom.

    Special tokens are in no block.

    Args:
        picture: the tokens of the picture.
        edge: number of patches along the edge of a square.

    """
    if picture.picture is None:
        raise ValueError("a text has no patches")
    rows, columns = picture.picture.grid
    first = len(picture.input_ids) - rows * columns
    blocks = []
    for top in range(0, rows, edge):
        bottom = min(top + edge, rows)
        for left in range(0, columns, edge):
            right = min(left + edge, columns)
            tokens = (
                first + row * columns + column
                for row in range(top, bottom)
                for column in range(left, right)
            )
            blocks.append(Block((top, bottom), (left, right), tuple(tokens)))
    return blocks


def spans_of(kind: SpanKind, text: str, tokenized: Text) -> list[Span]:
    """Split a text into spans.

    Args:
        kind: `tokens` includes special tokens and the tokens of a prompt.
        text: the text as the caller sent it.
        tokenized: the tokens of the text; words and sentences without a token are skipped.

    """
    if kind == "tokens":
        offsets = enumerate(tokenized.offsets)
        return [Span(start, end, (token,)) for token, (start, end) in offsets]
    parts = split_words(text) if kind == "words" else split_sentences(text)
    held = zip(parts, tokens_of(parts, tokenized), strict=True)
    return [Span(start, end, tuple(tokens)) for (start, end), tokens in held if tokens]


def split_sentences(text: str) -> list[Offset]:
    """Return start and end of each sentence in code points, without surrounding white space."""
    sentences: list[Offset] = []
    start = 0
    for match in _SENTENCE_END.finditer(text):
        following = _NEXT_CHARACTER.search(text, match.end())
        if match[0][0] in ".…" and following and following[0].islower():
            continue
        start = _add(sentences, text, start, match.end())
    _add(sentences, text, start, len(text))
    return sentences


def _add(sentences: list[Offset], text: str, start: int, end: int) -> int:
    """Append a sentence without surrounding white space, unless it is empty; return `end`."""
    part = text[start:end]
    if part.strip():
        begins = start + len(part) - len(part.lstrip())
        sentences.append((begins, start + len(part.rstrip())))
    return end


@dataclass(frozen=True)
class ExplainOptions:
    """Analyses that a caller requests of each pair of texts."""

    layer: int
    """Hidden state that is pooled, 0 … L."""
    pooling: PoolingName | None
    """Pooling mode; the checkpoint's own if None."""
    pairs: bool
    """Whether to compute the share of each pair of tokens."""
    occlusion: bool
    """Whether to compute the loss of similarity without each span."""
    decomposition: bool
    """Whether to compute the share of each pair of input tokens."""
    heads: bool
    """Whether to compute the loss of similarity without each head."""
    spans: SpanKind = "tokens"
    """Kind of the spans that occlusion masks as a whole."""
    top: int | None = None
    """Number of spans of each text to occlude, the most promising first; all if None."""
    block: int = 1
    """Patches along the edge of the squares of a picture that occlusion masks as a whole."""


def check_explainable(inference: Inference, options: ExplainOptions) -> None:
    """Raise if the model does not support the requested analyses.

    Raises:
        NoEmbeddings: the model does not compute vectors of texts.
        Unprocessable: shares are requested of vectors that are not a sum over tokens.
        NotExported: a decomposition or an ablated head of a static embedding; or a decomposition
            of a serving-only artifact.
        NotVerified: a use that failed the artifact's verification.

    """
    task = inference.manifest.task
    if task is not None:
        raise NoEmbeddings(
            f"/explain does not explain {inference.manifest.model}: ask /rank for the scores of a "
            "reranker or a hybrid model, or serve an embedding model, a sparse encoder or a "
            "late-interaction model"
        )
    inference.require_use("vectors")
    if options.pairs or options.layer != inference.config.num_hidden_layers:
        inference.require_use("heads")
    mode = options.pooling or inference.sentence.pooling
    if options.pairs and mode != "mean":
        raise Unprocessable(
            f"pairs are shares of means over tokens, and this is pooling {_named(mode)}: ask for "
            'pooling "mean", or leave pairs out of `include`'
        )
    if (options.pairs or options.decomposition) and not inference.vectors.additive(options.pooling):
        raise Unprocessable(
            "this model has modules after pooling that are not linear, through which the shares of "
            'tokens do not add up: ask for include ["occlusion"]'
        )
    if options.decomposition:
        inference.require(Decomposition)
    if options.heads:
        inference.require_head_outputs()


def _named(mode: PoolingModes) -> str:
    return mode if isinstance(mode, str) else " + ".join(mode)


@dataclass(frozen=True)
class PairExplanation:
    """Values that explain a similarity: None if not requested, NaN if not computed."""

    similarity: float
    """Cosine of the two vectors."""
    pairs: Floats | None = None
    """`[S_a, S_b]`: shares of token pairs, which sum to the similarity."""
    decomposition: Floats | None = None
    """`[S_a, S_b]`: shares of pairs of input tokens, which sum to the similarity."""
    occlusion: tuple[Floats, Floats] | None = None
    """`[W_a]` and `[W_b]`: similarity minus the similarity without the span."""
    spans: tuple[Sequence[AnySpan], Sequence[AnySpan]] = ((), ())
    """The spans of `occlusion`."""
    span_kind: SpanKind = "tokens"
    heads: Floats | None = None
    """`[L, N]`: similarity minus the similarity with the head ablated in both texts."""
    wanted: Mapping[str, int] = field(default_factory=dict)
    """Number of values to compute, by method; 1 for a decomposition."""

    @property
    def shares(self) -> dict[str, Floats]:
        """Matrices that were requested, by method."""
        named = {"pairs": self.pairs, "decomposition": self.decomposition}
        return {name: matrix for name, matrix in named.items() if matrix is not None}

    @property
    def computed(self) -> dict[str, int]:
        """Number of values computed before the deadline, by method, counted as in `wanted`."""
        values: dict[str, Sequence[Floats]] = {
            "occlusion": self.occlusion or (),
            "decomposition": () if self.decomposition is None else (self.decomposition[:1, :1],),
            "heads": () if self.heads is None else (self.heads,),
        }
        return {
            name: sum(int(np.count_nonzero(~np.isnan(part))) for part in values[name])
            for name in self.wanted
        }

    @property
    def partial(self) -> bool:
        """Whether the deadline came before all requested values were computed."""
        return self.computed != dict(self.wanted)

    def error(self, matrix: Floats) -> float:
        """Return |sum of the shares − similarity|; NaN if the shares were not computed."""
        return abs(float(matrix.sum(dtype=np.float64)) - self.similarity)

    def agreement(self) -> dict[str, float | None]:
        """Return Spearman's correlation of each method's sums over spans with the occlusion losses.

        The correlation is over the occluded spans of both texts; None if all sums or all losses
        are equal, or the method was not computed. The result is empty without occlusion.
        """
        if self.occlusion is None:
            return {}
        losses = np.concatenate(self.occlusion)
        known = ~np.isnan(losses)
        correlations: dict[str, float | None] = {}
        for name, matrix in self.shares.items():
            sides = zip(self.spans, (matrix.sum(axis=1), matrix.sum(axis=0)), strict=True)
            sums = np.concatenate([span_sums(spans, values) for spans, values in sides])
            correlation = np.nan if np.isnan(sums).any() else spearman(sums[known], losses[known])
            correlations[name] = None if np.isnan(correlation) else correlation
        return correlations


def span_sums(spans: Sequence[AnySpan], values: Floats) -> Floats:
    """Return the sum of the values of each span's tokens: `[S]` → `[W]`."""
    return np.array([values[list(span.tokens)].sum() for span in spans], np.float32)
