"""Explanations of the similarity of two texts or pictures: `POST /explain`, and its result.

Notation: S_a and S_b tokens of two texts, W_a and W_b words; S tokens of one of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from headscope.display import (
    LONG,
    HeatMap,
    Shaded,
    Shown,
    box,
    frame,
    lines,
    shaded,
    short,
    start_of,
    table,
)
from headscope.errors import HeadscopeError, Refused
from headscope.exchange import (
    FLOAT_BYTES,
    JSON_FLOAT_BYTES,
    Call,
    OnError,
    Raises,
    Returns,
    chained,
)
from headscope.fields import ExplainFields
from headscope.inputs import Side, pairs_of
from headscope.reading import build, each, tokenized
from headscope.results import Info, TokenizedText
from headscope.words import Word, membership

if TYPE_CHECKING:
    from pandas import DataFrame

Method = Literal["pairs", "decomposition"]
Values = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Values of the tokens, or of the spans, of both texts."""
MEANINGS = {
    "pairs": "share of the similarity",
    "decomposition": "share of the similarity, by input tokens",
    "occlusion": "loss of similarity without the token, or its word or sentence",
    "matches": "matched similarity",
}
MAX_PAIRS = 5
"""Maximum number of pairs of words that a notebook shows."""


@dataclass(frozen=True)
class OccludedSpan:
    """Word or sentence that is occluded as a whole."""

    start: int
    """Number of code points of the text before the span."""
    end: int
    tokens: tuple[int, ...]
    """Indices of the span's tokens."""


@dataclass(frozen=True)
class OccludedBlock:
    """Patches of a picture that are occluded as a whole."""

    rows: tuple[int, int]
    """First row, and the row after the last."""
    columns: tuple[int, int]
    tokens: tuple[int, ...]
    """Indices of the patches' tokens."""


Spans = tuple[OccludedSpan | OccludedBlock, ...]


@dataclass(frozen=True, repr=False)
class WordPair(Shown):
    """Pair of words, one of each text, and their share of the similarity."""

    one: Word
    other: Word
    share: float

    def _facts(self) -> list[str]:
        return [short(self.one.text), short(self.other.text), f"share={self.share:.4f}"]


@dataclass(frozen=True)
class TokenMatch:
    """Term of the similarity: the product for a token of each text, by their indices."""

    query: int
    document: int
    score: float
    token_id: int | None = None
    """Id of the word in the vocabulary, for a sparse encoder; None otherwise."""


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(Shown):
    """Explanation of the similarity of two texts; fields that were not requested are None."""

    model: str
    backend: str
    similarity: float
    texts: tuple[TokenizedText, TokenizedText]
    pairs: NDArray[np.float32] | None = None
    """`[S_a, S_b]`, shares of tokens, which sum to the similarity up to `completeness_error`."""
    completeness_error: float | None = None
    occlusion: Values | None = None
    """`[S_a]` and `[S_b]`, or the lengths of `spans`: loss of similarity without that token or
    span; NaN where it was not computed."""
    decomposition: NDArray[np.float32] | None = None
    """`[S_a, S_b]`, shares of input tokens, which sum to the similarity up to
    `decomposition_error`."""
    decomposition_error: float | None = None
    agreement: dict[str, float | None] | None = None
    """Spearman correlation of each method's row and column sums with `occlusion`."""
    matches: tuple[TokenMatch, ...] | None = None
    heads: NDArray[np.float32] | None = None
    """`[layers, heads]`, loss of similarity with that head ablated in both texts; NaN where it was
    not computed."""
    spans: tuple[Spans, Spans] | None = None
    """Spans of `occlusion`; None if they are the single tokens of two texts."""
    partial: bool = False
    """Whether the deadline passed before occlusion, decomposition and heads were complete."""
    computed: dict[str, int] | None = None
    """Number of computed values of `occlusion` and `heads`, and of computed decompositions."""

    def shares(self, method: Method = "pairs") -> NDArray[np.float32]:
        """Return the shares of words, `[W_a, W_b]`: sums of their tokens' shares."""
        matrix = self.pairs if method == "pairs" else self.decomposition
        if matrix is None:
            if self.computed and method in self.computed:
                raise HeadscopeError(f"the deadline passed before the {method}: request less")
            raise HeadscopeError(f'the reply has no {method}: request it (include "{method}")')
        first, second = (
            membership([word.tokens for word in text.words], len(text.tokens))
            for text in self.texts
        )
        return np.linalg.multi_dot([first, matrix, second.T]).astype(np.float32)

    def top_pairs(self, n: int = 10, method: Method = "pairs") -> list[WordPair]:
        """Return the n pairs of words with the largest shares, without special tokens."""
        shares, (first, second) = self.shares(method), self.texts
        pairs = (
            WordPair(a, b, float(shares[i, j]))
            for i, a in enumerate(first.words)
            for j, b in enumerate(second.words)
            if not (a.special or b.special)
        )
        return heapq.nlargest(n, pairs, key=lambda pair: pair.share)

    def token_values(self) -> dict[str, Values]:
        """Return the value of each token of both texts, by method of the reply.

        An occluded span's loss is the value of its tokens; NaN if they are in no span, or if it
        was not computed.
        """
        values: dict[str, Values] = {}
        for name, matrix in (("pairs", self.pairs), ("decomposition", self.decomposition)):
            if matrix is not None:
                values[name] = matrix.sum(axis=1), matrix.sum(axis=0)
        if self.occlusion is not None:
            values["occlusion"] = self.occlusion
            if self.spans is not None:
                values["occlusion"] = one, other = self._filled(np.nan)
                for own, spans, losses in zip(
                    (one, other), self.spans, self.occlusion, strict=True
                ):
                    for span, loss in zip(spans, losses, strict=True):
                        own[list(span.tokens)] = loss
        if self.matches is not None:
            values["matches"] = first, second = self._filled(0)
            for match in self.matches:
                first[match.query] += match.score
                second[match.document] += match.score
        return values

    def _filled(self, value: float) -> Values:
        one, other = (np.full(len(text.tokens), value, np.float32) for text in self.texts)
        return one, other

    def to_pandas(self) -> DataFrame:
        """Return a table with a row per token of both texts, and a column per method of the reply.

        `pairs` and `decomposition` are the sums of a token's shares; they add up over the tokens of
        a word.
        """
        rows = []
        for side, text in enumerate(self.texts):
            words = {token: word.text for word in text.words for token in word.tokens}
            rows += [
                (side, token, words.get(i, ""), *offset)
                for i, (token, offset) in enumerate(zip(text.tokens, text.offsets, strict=True))
            ]
        names = ("text", "token", "word", "start", "end")
        columns: dict[str, object] = dict(zip(names, zip(*rows, strict=True), strict=True))
        values = {name: np.concatenate(both) for name, both in self.token_values().items()}
        return frame(columns | values)

    def _facts(self) -> list[str]:
        texts = [short(text) for tokenized in self.texts for text in tokenized.texts]
        heads = [] if self.heads is None else ["heads"]
        return [*texts, f"similarity={self.similarity:.4f}", *self.token_values(), *heads]

    def _repr_html_(self) -> str:
        """Return both texts with shaded words, the largest pairs of words, and the map of heads."""
        title = f"similarity {self.similarity:.3f} · {self.model} ({self.backend})"
        cut = [f"text {side} is truncated" for side in (0, 1) if self.texts[side].truncated]
        return box(
            [lines([title, *cut]), self._texts_html(), self._pairs_html(), self._heads_html()]
        )

    def _texts_html(self) -> str:
        """Return a table with a row per method, and both texts with tokens shaded by their values.

        The darkest shade is the largest value of a token of either text, without special tokens.
        """
        rows = []
        for name, values in self.token_values().items():
            both = list(zip(self.texts, values, strict=True))
            magnitudes = [
                abs(float(value))
                for text, own in both
                for value, (start, end) in zip(own, text.offsets, strict=True)
                if start < end and not np.isnan(value)
            ]
            largest = max(magnitudes, default=0) or 1
            shades = [shaded(_pieces(text, own, largest)) for text, own in both]
            rows.append([f"{name}<br><small>{MEANINGS[name]}</small>", *shades])
        plain = ["", *(escape(start_of(text.texts[0], LONG)) for text in self.texts)]
        return table(("", "text 0", "text 1"), rows or [plain])

    def _pairs_html(self) -> str:
        """Return a table of the pairs of words with the largest shares; empty without shares."""
        if self.pairs is None and self.decomposition is None:
            return ""
        method: Method = "decomposition" if self.pairs is None else "pairs"
        best = self.top_pairs(MAX_PAIRS, method)
        largest = max((abs(pair.share) for pair in best), default=0) or 1
        rows = [
            (
                escape(pair.one.text),
                escape(pair.other.text),
                shaded([(f"{pair.share:.3f}", pair.share / largest, "")]),
            )
            for pair in best
        ]
        names = "word of text 0", "word of text 1", f"share ({method})"
        return table(names, rows) if rows else ""

    def _heads_html(self) -> str:
        """Return the map of the heads' values; empty if it was not requested."""
        if self.heads is None:
            return ""
        layers, heads = (
            tuple(f"{name} {index}" for index in range(size))
            for name, size in zip(("layer", "head"), self.heads.shape, strict=True)
        )
        return HeatMap("loss of similarity without a head", layers, self.heads, heads).html()


def _pieces(text: TokenizedText, values: NDArray[np.float32], largest: float) -> Iterator[Shaded]:
    """Yield a text's characters by token, with their shades; text between tokens has no shade."""
    (whole,) = text.texts
    at = 0
    for token, value, (start, end) in zip(text.tokens, values, text.offsets, strict=True):
        if start < end and end > at:
            yield whole[at:start], None, ""
            known = not np.isnan(value)
            shade, label = (float(value) / largest, f"{value:.3f}") if known else (None, "–")
            yield whole[max(start, at) : end], shade, f"{token}: {label}"
            at = end
    yield start_of(whole[at:], LONG), None, ""


@overload
def explain(
    inputs: Sequence[Sequence[Side]], *, on_error: Raises = "raise", **fields: Unpack[ExplainFields]
) -> Call[list[Explanation]]: ...
@overload
def explain(
    inputs: Sequence[Sequence[Side]], *, on_error: Returns, **fields: Unpack[ExplainFields]
) -> Call[list[Explanation | Refused]]: ...
def explain(
    inputs: Sequence[Sequence[Side]],
    *,
    on_error: OnError = "raise",
    **fields: Unpack[ExplainFields],
) -> Call[object]:
    """Return why the sides of each pair are similar: shares of tokens, and losses without each."""
    pairs = pairs_of(inputs)
    included = fields.get("include") or ("pairs",)
    matrices = sum(name in included for name in ("pairs", "decomposition"))

    def weigh(tokens: int, info: Info) -> int:
        heads = (info.layers or 0) * (info.heads or 0) * ("heads" in included)
        return JSON_FLOAT_BYTES * (tokens * max(FLOAT_BYTES, tokens * matrices // 4) + heads)

    read = read_explanations
    return Call("/explain", pairs, {**fields}, read, chained, weigh=weigh, on_error=on_error)


def read_explanations(reply: Any, pairs: Sequence[Sequence[Any]]) -> list[Explanation]:
    """Read one explanation per pair."""
    head = {"model": reply["model"], "backend": reply["backend"]}
    explanations = []
    for result, pair in each(reply["results"], pairs):
        sides = zip(result["texts"], pair, strict=True)
        texts = [tokenized(TokenizedText, reply, text, side) for text, side in sides]
        sizes = [len(text.tokens) for text in texts]
        matrices = {
            name: np.array(result[name], np.float32).reshape(sizes)
            for name in ("pairs", "decomposition")
            if result.get(name) is not None
        }
        explanations.append(build(Explanation, result | head | {"texts": texts} | matrices))
    return explanations
