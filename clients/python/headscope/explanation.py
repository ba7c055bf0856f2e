"""Explanations of the similarity of two texts or pictures: `POST /explain`, and its result.

Notation: S_a and S_b tokens of two texts, W_a and W_b words.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from headscope.call import FLOAT_BYTES, Call, CallFor, OnError, Raises, Returns, chained
from headscope.display import Shown, short
from headscope.errors import HeadscopeError, Refused
from headscope.explanation_view import explanation_frame, explanation_html, token_values
from headscope.fields import TextFields
from headscope.inputs import PairItem, Side, sides_of
from headscope.reading import check_count
from headscope.results import TokenizedText
from headscope.service_results import Info
from headscope.words import Word

if TYPE_CHECKING:
    from pandas import DataFrame

JSON_BYTES = 15
Method = Literal["pairs", "decomposition"]


class ExplainFields(TextFields, total=False):
    """Fields of `POST /explain`."""

    include: Sequence[Literal["pairs", "occlusion", "decomposition", "heads", "matches"]] | None
    layer: int
    pooling: Literal["mean", "cls", "max", "last"] | None
    spans: Literal["tokens", "words", "sentences"] | None
    block: int | None
    top: int | None


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
    occlusion: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None
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
        """Return the shares of words, `[W_a, W_b]`: sums of their tokens' shares.

        Raises:
            HeadscopeError: the reply lacks that method.

        """
        matrix = self.pairs if method == "pairs" else self.decomposition
        if matrix is None:
            if self.computed and method in self.computed:
                raise HeadscopeError(f"the deadline passed before the {method}: request less")
            raise HeadscopeError(f'the reply has no {method}: request it (include "{method}")')
        first, second = (_membership(text.words, len(text.tokens)) for text in self.texts)
        return np.linalg.multi_dot([first, matrix, second.T]).astype(np.float32)

    def top_pairs(self, n: int = 10, method: Method = "pairs") -> list[WordPair]:
        """Return the n pairs of words with the largest shares, without special tokens.

        Raises:
            HeadscopeError: the reply lacks that method.

        """
        shares, (first, second) = self.shares(method), self.texts
        pairs = (
            WordPair(a, b, float(shares[i, j]))
            for i, a in enumerate(first.words)
            for j, b in enumerate(second.words)
            if not (a.special or b.special)
        )
        return heapq.nlargest(n, pairs, key=lambda pair: pair.share)

    def to_pandas(self) -> DataFrame:
        """Return a table with a row per token of both texts, and a column per method of the reply.

        `pairs` and `decomposition` are the sums of a token's shares; they add up over the tokens of
        a word.

        Raises:
            ImportError: pandas is not installed.

        """
        return explanation_frame(self)

    def _facts(self) -> list[str]:
        texts = [short(text) for tokenized in self.texts for text in tokenized.texts]
        heads = [] if self.heads is None else ["heads"]
        return [*texts, f"similarity={self.similarity:.4f}", *token_values(self), *heads]

    def _repr_html_(self) -> str:
        return explanation_html(self)


@overload
def explain(
    inputs: Sequence[Sequence[Side]],
    *,
    on_error: Raises = "raise",
    **fields: Unpack[ExplainFields],
) -> CallFor[list[Explanation]]: ...
@overload
def explain(
    inputs: Sequence[Sequence[Side]], *, on_error: Returns, **fields: Unpack[ExplainFields]
) -> CallFor[list[Explanation | Refused]]: ...
def explain(
    inputs: Sequence[Sequence[Side]],
    *,
    on_error: OnError = "raise",
    **fields: Unpack[ExplainFields],
) -> CallFor[object]:
    """Return why the sides of each pair are similar: shares of tokens, and losses without each.

    Args:
        inputs: a list of pairs of texts or pictures.
        on_error: "return" to get the error of a refused input in the input's place.
        fields: further fields of `POST /explain`.

    Returns:
        One explanation per pair, in order.

    Raises:
        OSError: a picture's file cannot be read.
        TypeError: an input is not a pair.

    """
    pairs = sides_of(inputs)
    included = fields.get("include") or ("pairs",)
    matrices = sum(name in included for name in ("pairs", "decomposition"))

    def weigh(tokens: int, info: Info) -> int:
        heads = (info.layers or 0) * (info.heads or 0) * ("heads" in included)
        return JSON_BYTES * (tokens * max(FLOAT_BYTES, tokens * matrices // 4) + heads)

    return Call(
        "/explain",
        pairs,
        {**fields},
        read_explanations,
        chained,
        weigh=weigh,
        on_error=on_error,
    )


def read_explanations(content: bytes, pairs: Sequence[PairItem]) -> list[Explanation]:
    """Parse the JSON reply of /explain: one explanation per pair."""
    reply = json.loads(content)
    check_count(reply["results"], pairs)
    return [
        _explanation(result, reply["model"], reply["backend"], pair)
        for result, pair in zip(reply["results"], pairs, strict=True)
    ]


def _explanation(result: dict[str, Any], model: str, backend: str, pair: PairItem) -> Explanation:
    first, second = (
        TokenizedText(
            model=model,
            backend=backend,
            texts=(side if isinstance(side, str) else side.name,),
            tokens=fields["tokens"],
            token_ids=fields["token_ids"],
            segment_ids=[0] * len(fields["tokens"]),
            offsets=[(start, end) for start, end in fields["offsets"]],
            truncated=fields["truncated"],
            grid=_numbers(fields.get("grid")),
            size=_numbers(fields.get("size")),
            crop=_numbers(fields.get("crop")),
            tower=fields.get("tower"),
        )
        for side, fields in zip(pair, result["texts"], strict=True)
    )
    occlusion, matches, heads = (result.get(name) for name in ("occlusion", "matches", "heads"))
    spans = result.get("spans")
    return Explanation(
        model,
        backend,
        result["similarity"],
        (first, second),
        _matrix(result.get("pairs"), first, second),
        result.get("completeness_error"),
        None if occlusion is None else (_floats(occlusion[0]), _floats(occlusion[1])),
        _matrix(result.get("decomposition"), first, second),
        result.get("decomposition_error"),
        result.get("agreement"),
        None if matches is None else tuple(TokenMatch(**match) for match in matches),
        None if heads is None else _floats(heads),
        None if spans is None else (_spans(spans[0]), _spans(spans[1])),
        result.get("partial", False),
        result.get("computed"),
    )


def _numbers(values: Any) -> Any:
    return None if values is None else tuple(values)


def _spans(spans: Any) -> Spans:
    return tuple(
        OccludedBlock(tuple(s["rows"]), tuple(s["columns"]), tuple(s["tokens"]))
        if "rows" in s
        else OccludedSpan(s["start"], s["end"], tuple(s["tokens"]))
        for s in spans
    )


def _floats(values: Any) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def _matrix(values: Any, first: TokenizedText, second: TokenizedText) -> NDArray[np.float32] | None:
    if values is None:
        return None
    return np.array(values, np.float32).reshape(len(first.tokens), len(second.tokens))


def _membership(words: Sequence[Word], tokens: int) -> NDArray[np.float32]:
    """Return `[W, S]`, 1 if the token belongs to the word, else 0."""
    member = np.zeros((len(words), tokens), np.float32)
    for row, word in zip(member, words, strict=True):
        row[word.tokens] = 1
    return member
