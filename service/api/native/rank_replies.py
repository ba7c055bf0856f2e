"""Reply of `POST /rank`: its content, and pydantic models for the OpenAPI document.

Notation: D tokens of a document, W distinct words of two documents.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import BaseModel, Field

from model.artifact.sentence import SentenceConfig
from service.api.native.replies import Usage
from service.api.native.texts import Header
from service.api.wire.replies import WarnedReply
from service.inference.ranking.contrast import (
    ComparedDocument,
    Word,
    WordDifference,
    completeness_error,
    differences,
    rank_with,
)
from service.inference.ranking.ranker import Ranker
from service.inference.ranking.scorers import Method, Scoring
from service.inference.tokenization.text import Text


class RankedDocument(BaseModel):
    """Document and its score; with `explain` "tokens" also its tokens and their shares."""

    index: int = Field(description="Index of the document in the request.")
    score: float
    parts: dict[str, float] | None = Field(
        None, description="Dense, sparse and multi-vector score of a hybrid model."
    )
    tokens: list[str] | None = None
    token_ids: list[int] | None = None
    offsets: list[tuple[int, int]] | None = None
    truncated: bool | None = None
    unknown: list[int] | None = Field(
        None, description="Indices of the tokens that are the unknown token."
    )
    shares: list[float | None] | None = Field(
        None,
        description="`[D]`: share of each token in the score. Null for special tokens that are not "
        "left out, and for shares that were not computed before the deadline.",
    )
    completeness_error: float | None = Field(
        None, description="|sum of the shares − score|; null if shares are missing."
    )
    partial: bool | None = Field(
        None, description="Whether the deadline passed before all shares were computed."
    )
    computed: int | None = Field(None, description="Number of computed shares.")


class RankedQuery(BaseModel):
    """Tokens of the query."""

    tokens: list[str]
    token_ids: list[int]
    offsets: list[tuple[int, int]]
    truncated: bool
    unknown: list[int] = Field(description="Indices of the tokens that are the unknown token.")


class UsedPrompt(BaseModel):
    """Prompt of the checkpoint."""

    name: str
    text: str | None = Field(description="Null if the prompt is a chat template.")


class UsedPrompts(BaseModel):
    """Prompts of both sides; null without a prompt."""

    query: UsedPrompt | None
    document: UsedPrompt | None


class ContrastWord(BaseModel):
    """Word of either document, without regard to case, and its part in the difference."""

    word: str
    shares: tuple[float | None, float | None] = Field(
        description="Share of the word in each score; 0 in a document without it."
    )
    difference: float | None = Field(description="First share minus second share.")
    spans: tuple[list[tuple[int, int]], list[tuple[int, int]]] = Field(
        description="Occurrences in each document, in code points."
    )


class WithoutWord(BaseModel):
    """Score and rank that a document would have without a word."""

    word: str
    score: float | None
    rank: int | None = Field(description="From 1; null if not computed before the deadline.")


class Contrast(BaseModel):
    """Comparison of two documents."""

    documents: tuple[int, int] = Field(description="Indices of the documents in the request.")
    ranks: tuple[int, int]
    difference: float = Field(description="First score minus second score.")
    words: list[ContrastWord] = Field(description="By falling size of the difference.")
    other: tuple[float, float] = Field(
        description="Sum of the shares of all tokens of no word, such as special tokens."
    )
    completeness_error: float | None = Field(
        description="|sum of all differences − difference of the scores|; null if shares are "
        "missing."
    )
    without: tuple[list[WithoutWord], list[WithoutWord]] = Field(
        description="Ranks without each of the words with the largest shares, the largest first."
    )
    partial: bool
    computed: tuple[int, int] = Field(description="Number of computed scores without a word.")


class RankReply(WarnedReply):
    """JSON reply of `POST /rank`."""

    model: str
    backend: str
    scoring: Scoring = Field(description="Name of the score, which the kind of model determines.")
    method: Method | None = Field(None, description="Origin of the shares; absent without them.")
    prompts: UsedPrompts
    query: RankedQuery | None = Field(
        None,
        description='With `explain` "tokens": tokens of the query; of a cross-encoder, in the pair '
        "with the first document.",
    )
    results: list[RankedDocument] = Field(description="The first `top_n` documents.")
    contrast: Contrast | None = None
    usage: Usage


def rank_content(
    header: Header, ranker: Ranker, prompts: Mapping[str, object]
) -> dict[str, object]:
    """Return the JSON reply; fields that were not requested are absent."""
    scorer = ranker.scorer
    content: dict[str, object] = {**header.names, "scoring": scorer.scoring}
    if ranker.explains:
        content["method"] = scorer.method
    content["prompts"] = prompts
    if ranker.options.explain == "tokens":
        content["query"] = _tokens(scorer.query_text(0))
    shown = ranker.order[: ranker.shown]
    content["results"] = [_result(ranker, number) for number in shown]
    if ranker.contrast:
        content["contrast"] = _contrast(ranker.scores, ranker.contrast)
    tokens = scorer.timings.tokens
    return content | {"usage": {"inputs": len(ranker.inputs), "tokens": tokens}}


def prompt_fields(sentence: SentenceConfig, names: Sequence[str | None]) -> dict[str, object]:
    """Return the prompts of the query and of the documents, by their names."""
    return {
        side: name and {"name": name, "text": sentence.prompts.get(name)}
        for side, name in zip(("query", "document"), names, strict=True)
    }


def _tokens(text: Text) -> dict[str, object]:
    return {
        "tokens": text.tokens,
        "token_ids": text.input_ids.tolist(),
        "offsets": text.offsets,
        "truncated": text.truncated,
        "unknown": np.flatnonzero(text.unknown).tolist(),
    }


def _result(ranker: Ranker, number: int) -> dict[str, object]:
    score, parts = ranker.documents[number].score, ranker.documents[number].parts
    fields: dict[str, object] = {"index": number, "score": score}
    if parts is not None:
        fields["parts"] = parts
    explained = ranker.tokens.get(number)
    if explained is not None:
        fields |= _tokens(ranker.scorer.document(number)) | {
            "shares": explained.shares.tolist(),
            "completeness_error": explained.error(score),
            "partial": explained.computed < explained.wanted,
            "computed": explained.computed,
        }
    return fields


def _contrast(scores: Sequence[float], sides: Sequence[ComparedDocument]) -> dict[str, object]:
    first, other = sides
    return {
        "documents": [side.number for side in sides],
        "ranks": [rank_with(scores, side.number, side.score) for side in sides],
        "difference": first.score - other.score,
        "words": [_word(row) for row in differences(first, other)],
        "other": [side.rest for side in sides],
        "completeness_error": completeness_error(first, other),
        "without": [_without(scores, side) for side in sides],
        "partial": any(side.computed < side.wanted for side in sides),
        "computed": [side.computed for side in sides],
    }


def _word(row: WordDifference) -> dict[str, object]:
    return {
        "word": row.text,
        "shares": row.shares,
        "difference": row.difference,
        "spans": [_spans(row.first), _spans(row.other)],
    }


def _spans(word: Word | None) -> Sequence[tuple[int, int]]:
    return word.spans if word else ()


def _without(scores: Sequence[float], side: ComparedDocument) -> list[dict[str, object]]:
    """Return the score and rank without each of the strongest words."""
    return [
        {
            "word": side.words[place].text,
            "score": score,
            "rank": None if math.isnan(score) else rank_with(scores, side.number, score),
        }
        for place, score in zip(side.strongest, side.without, strict=True)
    ]
