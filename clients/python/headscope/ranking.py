"""Scores of pairs of texts, texts ranked by them, and rankings explained: /score and /rank.

A score is a cross-encoder's probability, a late-interaction model's MaxSim, or the cosine of the
vectors of a model without a task head. Notation: B texts, D tokens of a document.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from headscope.display import Shown, short
from headscope.errors import Refused
from headscope.exchange import (
    JSON_SCORE_BYTES,
    JSON_TOKEN_BYTES,
    Call,
    OnError,
    Raises,
    Returns,
    chained,
    only,
)
from headscope.fields import RankingFields, RerankFields, ScoreFields
from headscope.inputs import list_of_texts, targets_of
from headscope.reading import build, each, tokenized
from headscope.results import Rank, TokenizedText

Scores = Sequence[float | Refused]


@overload
def score(
    queries: str | Sequence[str],
    texts: Sequence[str],
    *,
    on_error: Raises = "raise",
    **fields: Unpack[ScoreFields],
) -> Call[NDArray[np.float32]]: ...
@overload
def score(
    queries: str | Sequence[str],
    texts: Sequence[str],
    *,
    on_error: Returns,
    **fields: Unpack[ScoreFields],
) -> Call[list[float | Refused]]: ...
def score(
    queries: str | Sequence[str],
    texts: Sequence[str],
    *,
    on_error: OnError = "raise",
    **fields: Unpack[ScoreFields],
) -> Call[object]:
    """Return the score of each text with the only query, or with its own query, `[B]`."""

    def join(parts: Sequence[Scores]) -> object:
        scores = chained(parts)
        return scores if on_error == "return" else np.array(scores, np.float32)

    return _scored(queries, list_of_texts(texts), fields, on_error, join)


@overload
def rank(
    query: str, texts: Sequence[str], *, on_error: Raises = "raise", **fields: Unpack[ScoreFields]
) -> Call[list[Rank]]: ...
@overload
def rank(
    query: str, texts: Sequence[str], *, on_error: Returns, **fields: Unpack[ScoreFields]
) -> Call[list[Rank | Refused]]: ...
def rank(
    query: str, texts: Sequence[str], *, on_error: OnError = "raise", **fields: Unpack[ScoreFields]
) -> Call[object]:
    """Rank texts by their scores with a query; a model of vectors ranks them by cosine.

    The largest score is first, and errors of refused texts are last; `index` is the index in the
    list.
    """
    checked = list_of_texts(texts)
    return _scored(query, checked, fields, on_error, _ranks_of(checked))


@overload
def rerank(
    query: str, texts: Sequence[str], *, on_error: Raises = "raise", **fields: Unpack[RerankFields]
) -> Call[list[Rank]]: ...
@overload
def rerank(
    query: str, texts: Sequence[str], *, on_error: Returns, **fields: Unpack[RerankFields]
) -> Call[list[Rank | Refused]]: ...
def rerank(
    query: str, texts: Sequence[str], *, on_error: OnError = "raise", **fields: Unpack[RerankFields]
) -> Call[object]:
    """Rank texts by a cross-encoder's or a late-interaction model's scores with a query.

    The largest score is first, and errors of refused texts are last; `index` is the index in the
    list. `raw_scores` keeps the order of scores that saturate at 1.0, where the texts take several
    requests.
    """
    checked = list_of_texts(texts)
    return Call(
        "/rerank",
        checked,
        {**fields, "query": query},
        _read_scores,
        _ranks_of(checked),
        name="texts",
        shared=query,
        on_error=on_error,
    )


def _ranks_of(texts: Sequence[str]) -> Callable[[Sequence[Scores]], list[Rank | Refused]]:
    """Return the function that joins the scores of texts to ranks, followed by the errors."""

    def join(parts: Sequence[Scores]) -> list[Rank | Refused]:
        scores = chained(parts)
        pairs = zip(scores, texts, strict=True)
        ranks = [Rank(i, s, t) for i, (s, t) in enumerate(pairs) if not isinstance(s, Refused)]
        refused = [score for score in scores if isinstance(score, Refused)]
        return [*sorted(ranks, key=lambda rank: -rank.score), *refused]

    return join


def _scored(
    queries: str | Sequence[str],
    texts: Sequence[str],
    fields: ScoreFields,
    on_error: OnError,
    join: Callable[[Sequence[Scores]], object],
) -> Call[object]:
    """Return a call of /score."""
    query = queries if isinstance(queries, str) else None
    return Call(
        "/score",
        texts,
        {**fields} if query is None else {**fields, "text_1": query},
        lambda reply, parts: _read_scores(reply["data"], parts),
        join,
        name="text_2",
        shared=query or "",
        targets=targets_of(queries, len(texts), "queries") if query is None else (),
        targets_name="text_1",
        weigh=lambda *_: JSON_SCORE_BYTES,
        on_error=on_error,
    )


def _read_scores(results: Any, texts: Sequence[object]) -> list[float]:
    """Read scores with the indices of their texts, and return them in the order of the texts."""
    scores = {result["index"]: float(result["score"]) for result, _ in each(results, texts)}
    return [scores[index] for index in range(len(texts))]


@dataclass(frozen=True, eq=False, repr=False)
class RankedDocument(Shown):
    """Document and its score; fields of shares are None unless `explain` is "tokens"."""

    index: int
    """Index of the document in the call."""
    score: float
    text: str
    tokenized: TokenizedText | None = None
    """Tokens of the document."""
    shares: NDArray[np.float32] | None = None
    """`[D]`, share of each token in the score; NaN for special tokens that stay, and for shares
    that were not computed before the deadline."""
    completeness_error: float | None = None
    """|sum of the shares − score|; None if shares are missing."""
    partial: bool = False
    """Whether the deadline passed before all shares were computed."""
    computed: int | None = None
    """Number of computed shares."""
    parts: dict[str, float] | None = None
    """Dense, sparse and multi-vector score of a hybrid model."""
    unknown: tuple[int, ...] = ()
    """Indices of the tokens that are the unknown token."""

    def _facts(self) -> list[str]:
        return [f"index={self.index}", f"score={self.score:.4f}", short(self.text)]


@dataclass(frozen=True)
class WordDifference:
    """Word of either of two documents, without regard to case."""

    word: str
    shares: tuple[float | None, float | None]
    """Share of the word in each score; None if not computed."""
    difference: float | None
    """First share minus second share."""
    spans: tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]
    """Occurrences in each document, in code points."""


@dataclass(frozen=True)
class WithoutWord:
    """Score and rank that a document would have without a word; None if not computed."""

    word: str
    score: float | None
    rank: int | None


@dataclass(frozen=True, repr=False)
class Contrast(Shown):
    """Difference of the scores of two documents, word by word."""

    documents: tuple[int, int]
    """Indices of the documents in the call."""
    ranks: tuple[int, int]
    difference: float
    """First score minus second score."""
    words: tuple[WordDifference, ...]
    """Words by falling size of their difference."""
    other: tuple[float, float]
    """Sum of the shares of all tokens of no word."""
    completeness_error: float | None
    without: tuple[tuple[WithoutWord, ...], tuple[WithoutWord, ...]]
    """Ranks of each document without each of its words with the largest shares."""
    partial: bool
    computed: tuple[int, int]
    """Number of computed scores without a word."""

    def _facts(self) -> list[str]:
        words = [f"{row.word}={row.difference:+.3f}" for row in self.words[:3] if row.difference]
        return [f"documents={self.documents}", f"difference={self.difference:+.4f}", *words]


@dataclass(frozen=True, repr=False)
class Ranking(Shown):
    """Documents in the order of their scores with a query."""

    model: str
    backend: str
    scoring: str
    """Name of the score, such as "cosine"."""
    method: str | None
    """Origin of the shares; None without an explanation."""
    documents: tuple[RankedDocument, ...]
    """The first `top_n` documents, the best first."""
    contrast: Contrast | None
    prompts: tuple[str | None, str | None]
    """Names of the prompts of the query and of the documents."""

    def _facts(self) -> list[str]:
        return [f"scoring={self.scoring}", *map(repr, self.documents[:3])]


def explain_ranking(
    query: str, documents: Sequence[str], **fields: Unpack[RankingFields]
) -> Call[Ranking]:
    """Rank 1 to 512 documents by the score of any model, and explain the ranking.

    All documents go into one request, because ranks refer to all of them.
    """
    checked = list_of_texts(documents)
    if not checked:
        raise ValueError("documents is empty: at least one document is needed")
    return Call(
        "/rank",
        checked,
        {**fields, "query": query},
        read_ranking,
        only,
        name="documents",
        shared=query,
        weigh=lambda tokens, _: JSON_TOKEN_BYTES * tokens,
        whole=True,
    )


def read_ranking(reply: Any, documents: Sequence[str]) -> Ranking:
    """Read the ranking of the documents."""
    results = []
    for result in reply["results"]:
        text = documents[result["index"]]
        shown = tokenized(TokenizedText, reply, result, text) if "tokens" in result else None
        results.append({**result, "text": text, "tokenized": shown})
    prompts = [reply["prompts"][side] for side in ("query", "document")]
    names = [None if prompt is None else prompt["name"] for prompt in prompts]
    absent = {"method": None, "contrast": None}
    ranking: Ranking = build(Ranking, absent | reply | {"documents": results, "prompts": names})
    return ranking
