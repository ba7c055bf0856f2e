"""Scores of pairs of texts, texts ranked by them, and rankings explained: /score and /rank.

A score is a cross-encoder's probability, a late-interaction model's MaxSim, or the cosine of the
vectors of a model without a task head. Notation: B texts, D tokens of a document.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from headscope.call import Call, CallFor, OnError, Raises, Returns, chained, only
from headscope.display import Shown, short
from headscope.errors import Refused
from headscope.fields import ScoreFields, ScoreWeights, TruncationFields
from headscope.inputs import only_texts, targets_of
from headscope.reading import check_count
from headscope.results import Rank, TokenizedText

Scores = Sequence[float | Refused]
SCORE_BYTES = 64
"""Estimated size of a score in JSON, in bytes."""


@overload
def score(
    queries: str | Sequence[str],
    texts: Sequence[str],
    *,
    on_error: Raises = "raise",
    **fields: Unpack[ScoreFields],
) -> CallFor[NDArray[np.float32]]: ...
@overload
def score(
    queries: str | Sequence[str],
    texts: Sequence[str],
    *,
    on_error: Returns,
    **fields: Unpack[ScoreFields],
) -> CallFor[list[float | Refused]]: ...
def score(
    queries: str | Sequence[str],
    texts: Sequence[str],
    *,
    on_error: OnError = "raise",
    **fields: Unpack[ScoreFields],
) -> CallFor[object]:
    """Return the score of each text with a query, or with its own query, `[B]`.

    Args:
        queries: one query for all texts, or a list with one query per text.
        texts: the texts to score.
        on_error: "return" to get a list of scores, and errors of refused texts.
        fields: further fields of `POST /score`.

    Raises:
        ValueError: the numbers of queries and texts differ.

    """

    def join(parts: Sequence[Scores]) -> object:
        scores = chained(parts)
        return scores if on_error == "return" else np.array(scores, np.float32)

    return _scored(queries, only_texts(texts), fields, on_error, join)


@overload
def rank(
    query: str, texts: Sequence[str], *, on_error: Raises = "raise", **fields: Unpack[ScoreFields]
) -> CallFor[list[Rank]]: ...
@overload
def rank(
    query: str, texts: Sequence[str], *, on_error: Returns, **fields: Unpack[ScoreFields]
) -> CallFor[list[Rank | Refused]]: ...
def rank(
    query: str, texts: Sequence[str], *, on_error: OnError = "raise", **fields: Unpack[ScoreFields]
) -> CallFor[object]:
    """Rank texts by their scores with a query; a model of vectors ranks them by cosine.

    Args:
        query: the query.
        texts: the texts to rank.
        on_error: "return" to get the errors of refused texts after the ranks.
        fields: further fields of `POST /score`.

    Returns:
        All texts, the largest score first; `index` is the index in the list.

    """
    checked = only_texts(texts)

    def join(parts: Sequence[Scores]) -> list[Rank | Refused]:
        scores = list(enumerate(chained(parts)))
        ranks = [Rank(i, s, checked[i]) for i, s in scores if not isinstance(s, Refused)]
        refused = [error for _, error in scores if isinstance(error, Refused)]
        return [*sorted(ranks, key=lambda ranked: -ranked.score), *refused]

    return _scored(query, checked, fields, on_error, join)


def _scored(
    queries: str | Sequence[str],
    texts: Sequence[str],
    fields: ScoreFields,
    on_error: OnError,
    join: Callable[[Sequence[Scores]], object],
) -> CallFor[object]:
    """Return a call of /score."""
    query = queries if isinstance(queries, str) else None
    return Call(
        "/score",
        texts,
        {**fields} if query is None else {**fields, "text_1": query},
        read_scores,
        join,
        name="text_2",
        shared=query or "",
        targets=targets_of(queries, texts, "queries") if query is None else (),
        targets_name="text_1",
        weigh=lambda *_: SCORE_BYTES,
        on_error=on_error,
    )


def read_scores(content: bytes, texts: Sequence[object]) -> list[float]:
    """Parse the scores of a reply of /score, in the order of the texts."""
    data = json.loads(content)["data"]
    check_count(data, texts)
    scores = {item["index"]: float(item["score"]) for item in data}
    return [scores[index] for index in range(len(texts))]


JSON_BYTES = 96
"""Estimated bytes of a token with its share in JSON."""


class RankingFields(TruncationFields, total=False):
    """Fields of `POST /rank`."""

    top_n: int | None
    query_prompt_name: str | None
    document_prompt_name: str | None
    explain: Literal["none", "tokens", "contrast"]
    compare: Sequence[int] | None
    top_words: int | None
    query_without: Sequence[tuple[int, int]] | None
    documents_without: Sequence[Sequence[tuple[int, int]]] | None
    weights: ScoreWeights | None
    backend: Literal["onnx", "torch"] | None


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
) -> CallFor[Ranking]:
    """Rank documents by the score of any model, and explain the ranking.

    All documents go into one request, because ranks refer to all of them.

    Args:
        query: the query.
        documents: 1 to 512 texts.
        fields: further fields of `POST /rank`, such as `explain`.

    Raises:
        ValueError: there is no document.

    """
    checked = only_texts(documents)
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
        weigh=lambda tokens, _: JSON_BYTES * tokens,
        whole=True,
    )


def read_ranking(content: bytes, documents: Sequence[str]) -> Ranking:
    """Parse the JSON reply of /rank."""
    reply = json.loads(content)
    model, backend = reply["model"], reply["backend"]
    contrast = reply.get("contrast")
    return Ranking(
        model,
        backend,
        reply["scoring"],
        reply.get("method"),
        tuple(
            _document(result, documents[result["index"]], model, backend)
            for result in reply["results"]
        ),
        None if contrast is None else _contrast(contrast),
        (_prompt(reply["prompts"]["query"]), _prompt(reply["prompts"]["document"])),
    )


def _prompt(prompt: dict[str, str] | None) -> str | None:
    return None if prompt is None else prompt["name"]


def _document(result: dict[str, Any], text: str, model: str, backend: str) -> RankedDocument:
    index, score, parts = result["index"], float(result["score"]), result.get("parts")
    if "shares" not in result:
        return RankedDocument(index, score, text, parts=parts)
    tokenized = TokenizedText(
        model=model,
        backend=backend,
        texts=(text,),
        tokens=result["tokens"],
        token_ids=result["token_ids"],
        segment_ids=[0] * len(result["tokens"]),
        offsets=[(start, end) for start, end in result["offsets"]],
        truncated=result["truncated"],
    )
    return RankedDocument(
        *(index, score, text, tokenized, np.array(result["shares"], np.float32)),
        *(result["completeness_error"], result["partial"], result["computed"], parts),
        tuple(result["unknown"]),
    )


def _contrast(fields: dict[str, Any]) -> Contrast:
    (first, other), (one, two) = fields["without"], fields["other"]
    return Contrast(
        documents=_pair(fields["documents"]),
        ranks=_pair(fields["ranks"]),
        difference=fields["difference"],
        words=tuple(_word(row) for row in fields["words"]),
        other=(one, two),
        completeness_error=fields["completeness_error"],
        without=(_without(first), _without(other)),
        partial=fields["partial"],
        computed=_pair(fields["computed"]),
    )


def _word(row: dict[str, Any]) -> WordDifference:
    (a, b), (first, other) = row["shares"], row["spans"]
    spans = tuple(map(_pair, first)), tuple(map(_pair, other))
    return WordDifference(row["word"], (a, b), row["difference"], spans)


def _without(rows: Sequence[dict[str, Any]]) -> tuple[WithoutWord, ...]:
    return tuple(WithoutWord(row["word"], row["score"], row["rank"]) for row in rows)


def _pair(values: Sequence[int]) -> tuple[int, int]:
    first, other = values
    return first, other
