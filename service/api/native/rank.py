"""`POST /rank`: documents ranked by their scores with a query, and why one is above another.

Notation: D tokens of a document, W distinct words of two documents.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
import orjson
from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from model.numerics.late_interaction import ROLES
from service.api.drop_in.embedding import known_prompt
from service.api.drop_in.scores import ScoreWeights
from service.api.native.texts import TEXT_BYTES, TOKEN_BYTES, TOKENS, BackendName, reply
from service.api.requests import Distinct, StrictRequest
from service.api.wire.replies import PROBLEMS, replies, warning_field
from service.api.wire.route import ApiExchange, JsonRoute, ModelRequest
from service.api.wire.schemas import any_of, named
from service.errors import NoTaskHead, Unprocessable
from service.inference.core import Inference
from service.inference.ranking.choice import (
    RankTexts,
    check_rankable,
    scorer_of,
    separate_prompts,
    used_prompts,
)
from service.inference.ranking.contrast import (
    ComparedDocument,
    completeness_error,
    differences,
    rank_with,
)
from service.inference.ranking.ranker import ExplainKind, Ranker, RankOptions, unseen_of
from service.inference.ranking.scorers import Method, Scoring
from service.inference.tokenization.text import Offset, Text
from service.inference.tokenization.tokenizer import Options
from service.inference.tokenization.truncation import Direction

MOST_DOCUMENTS, MOST_WORDS, MOST_SPANS = 512, 64, 1024
"""Maximum number of documents, of words without which a rank is computed, and of spans that are
left out of a text."""
SCORE_BYTES, SHARE_BYTES, WORD_BYTES, WITHOUT_BYTES = 160, 24, 192, 128
"""Predicted bytes of a score and its parts, of a token's share, of a word, and of a rank without a
word."""
FEWER = "send fewer or shorter documents, or a smaller top_n"
_NO_RANKER = PROBLEMS[404] | {"description": "The model is a classifier and ranks no texts"}

Span = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=2, max_length=2)]
SpansOfText = Annotated[list[Span], Field(max_length=MOST_SPANS)]

router = APIRouter(route_class=JsonRoute, tags=["inference"])


class RankRequest(ModelRequest, StrictRequest):
    """Request body of `POST /rank`."""

    needs = check_rankable

    query: str = Field(description="Text that the documents are scored against.")
    documents: Annotated[list[str], Field(min_length=1, max_length=MOST_DOCUMENTS)] = Field(
        description="Texts to rank."
    )
    top_n: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Number of documents in the reply, the best first; all by default."
    )
    query_prompt_name: str | None = Field(
        None,
        description="Name of a prompt in the checkpoint's configuration. By default the prompt "
        "that it has for queries, or else its default prompt; an empty name disables both.",
    )
    document_prompt_name: str | None = Field(
        None, description="The same for the documents, with the prompt for documents."
    )
    explain: ExplainKind = Field(
        "none",
        description="`tokens`: share of each token in the score of its document; `contrast`: "
        "difference of two documents' scores word by word, and their ranks without single words.",
    )
    compare: (
        Annotated[Distinct[Annotated[int, Field(ge=0)]], Field(min_length=2, max_length=2)] | None
    ) = Field(
        None,
        description="Indices of the two documents of a contrast; those with the highest scores by "
        "default.",
    )
    top_words: Annotated[int, Field(ge=1, le=MOST_WORDS)] | None = Field(
        None,
        description="Number of words of each document of a contrast without which its rank is "
        "computed, those with the largest shares; 5 by default.",
    )
    query_without: SpansOfText | None = Field(
        None,
        description="Words of the query to leave out, as [start, end) in code points, ascending; "
        "without an explanation.",
    )
    documents_without: list[SpansOfText] | None = Field(
        None, description="Words to leave out of each document, in the order of `documents`."
    )
    weights: ScoreWeights | None = Field(
        None, description="Weights of the scores of bge-m3's three vectors; 1 each by default."
    )
    truncate: bool = Field(False, description="Truncate long texts instead of rejecting them.")
    truncation_direction: Direction = Field("right", description="Side to cut.")
    backend: BackendName | None = Field(
        None, description="Engine that computes the reply; there is no fallback."
    )

    @property
    def options(self) -> RankOptions:
        """Requested explanations."""
        count = len(self.documents)
        if self.explain != "contrast" and (self.compare, self.top_words) != (None, None):
            raise Unprocessable('compare and top_words apply to explain "contrast": set it')
        if self.explain == "contrast" and count < 2:
            raise Unprocessable('documents: explain "contrast" needs at least 2, and there is 1')
        if self.explain != "none" and (self.query_without, self.documents_without) != (None, None):
            raise Unprocessable(
                'query_without and documents_without apply to explain "none": leave `explain` out'
            )
        for place, number in enumerate(self.compare or ()):
            if number >= count:
                raise Unprocessable(f"compare[{place}]: {number} is not in 0 … {count - 1}")
        compare = (self.compare[0], self.compare[1]) if self.compare else None
        words = self.top_words or RankOptions.top_words
        return RankOptions(self.explain, self.top_n, compare, words)

    @property
    def left_out(self) -> tuple[list[Offset], list[list[Offset]]] | None:
        """Spans to leave out of the query, and of each document."""
        given = self.query_without or [], *(self.documents_without or [])
        of_query, *of_documents = ([(start, end) for start, end in spans] for spans in given)
        if self.documents_without and len(of_documents) != len(self.documents):
            raise Unprocessable(
                f"documents_without has {len(of_documents)} lists, and there are "
                f"{len(self.documents)} documents: send one list for each"
            )
        return (of_query, of_documents) if of_query or any(of_documents) else None

    def texts(self, inference: Inference) -> RankTexts:
        """Return the texts with their prompts: the checkpoint's own where the request has none."""
        prompts = self.query_prompt_name, self.document_prompt_name
        if separate_prompts(inference):
            query, document = (
                known_prompt(inference, side) if name is None else name
                for name, side in zip(prompts, ("query", "document"), strict=True)
            )
            prompts = query, document
        options = Options(self.truncate, self.truncation_direction)
        return RankTexts(
            [self.query],
            self.documents,
            options,
            prompts,
            explains=self.explain != "none",
            weights=self.weights.model_dump() if self.weights else None,
        )


_TEXT = {**TOKENS, "unknown": ([int], "Indices of the tokens that are the unknown token.")}
_PROMPT = {"name": str, "text": (str | None, "Null if the prompt is a chat template.")}
_SIDE = any_of(_PROMPT, None)
_DOCUMENT = named(
    "RankedDocument",
    {
        "index": (int, "Index of the document in the request."),
        "score": float,
        "parts?": (dict[str, float], "Dense, sparse and multi-vector score of a hybrid model."),
        **{f"{name}?": form for name, form in _TEXT.items()},
        "shares?": (
            [float | None],
            "`[D]`: share of each token in the score. Null for special tokens that are not left "
            "out, and for shares that were not computed before the deadline.",
        ),
        "completeness_error?": (float, "|sum of the shares − score|; null if shares are missing."),
        "partial?": (bool, "Whether the deadline passed before all shares were computed."),
        "computed?": (int, "Number of computed shares."),
    },
)
_WORD = named(
    "ContrastWord",
    {
        "word": (str, "Word of either document, without regard to case."),
        "shares": (
            [float | None, float | None],
            "Share of the word in each score; 0 in a document without it.",
        ),
        "difference": (float | None, "First share minus second share."),
        "spans": ([[[int, int]], [[int, int]]], "Occurrences in each document, in code points."),
    },
)
_WITHOUT = [
    named(
        "WithoutWord",
        {
            "word": str,
            "score": float | None,
            "rank": (int | None, "From 1; null if not computed before the deadline."),
        },
    )
]
_CONTRAST = named(
    "Contrast",
    {
        "documents": ([int, int], "Indices of the documents in the request."),
        "ranks": [int, int],
        "difference": (float, "First score minus second score."),
        "words": ([_WORD], "By falling size of the difference."),
        "other": (
            [float, float],
            "Sum of the shares of all tokens of no word, such as special tokens.",
        ),
        "completeness_error": (
            float | None,
            "|sum of all differences − difference of the scores|; null if shares are missing.",
        ),
        "without": (
            [_WITHOUT, _WITHOUT],
            "Ranks without each of the words with the largest shares, the largest first.",
        ),
        "partial": bool,
        "computed": ([int, int], "Number of computed scores without a word."),
    },
)
REPLY = reply(
    "RankReply",
    {
        "scoring": (Scoring, "Name of the score, which the kind of model determines."),
        "method?": (Method, "Origin of the shares; absent without them."),
        "prompts": ({"query": _SIDE, "document": _SIDE}, "Null without a prompt."),
        "query?": (
            _TEXT,
            'With `explain` "tokens": tokens of the query; of a cross-encoder, in the pair with '
            "the first document.",
        ),
        "results": ([_DOCUMENT], "The first `top_n` documents."),
        "contrast?": _CONTRAST,
    },
)


@router.post("/rank", responses=replies(REPLY, {**PROBLEMS, NoTaskHead.status: _NO_RANKER}))
async def rank(body: RankRequest, exchange: ApiExchange) -> Response:
    """Rank documents by their scores with a query, and explain why one is above another."""
    model, caller, options, spans = (
        exchange.model,
        exchange.call(),
        body.options,
        body.left_out,
    )
    inference, texts = model.inference, body.texts(model.inference)
    scorer = await scorer_of(inference, texts, caller, body.backend)
    unseen = None
    if spans is not None:
        given = body.query, body.documents
        unseen = await asyncio.to_thread(unseen_of, scorer, given, *spans)
    ranker = Ranker(scorer, body.documents, options, unseen)
    names, known = used_prompts(inference, texts.prompts), inference.sentence.prompts
    prompts: dict[str, object] = {
        side: name and {"name": name, "text": known.get(name)}
        for side, name in zip(ROLES, names, strict=True)
    }
    size = reply_bytes(ranker, len(orjson.dumps(prompts)))
    exchange.reserve(size, advice=FEWER)
    await ranker.rank(size)
    timings = scorer.timings
    return await exchange.json_reply(lambda: rank_content(model.name, ranker, prompts), timings)


def reply_bytes(ranker: Ranker, prompt_bytes: int) -> int:
    """Return the largest possible size of a reply, whichever documents are the first ones."""
    options, scorer = ranker.options, ranker.scorer
    lengths = [len(scorer.own_tokens(number)) for number in range(len(ranker.inputs))]
    size = 2 * TEXT_BYTES + prompt_bytes + SCORE_BYTES * ranker.shown
    if options.explain == "tokens":
        largest = [*heapq.nlargest(ranker.shown, lengths), len(scorer.query_tokens(0))]
        size += sum(TEXT_BYTES + (TOKEN_BYTES + SHARE_BYTES) * tokens for tokens in largest)
    if options.explain == "contrast":
        size += WORD_BYTES * sum(heapq.nlargest(2, lengths)) + 2 * WITHOUT_BYTES * options.top_words
    return size


def rank_content(model: str, ranker: Ranker, prompts: Mapping[str, object]) -> dict[str, object]:
    """Return the JSON reply; fields that were not requested are absent."""
    scorer = ranker.scorer
    content: dict[str, object] = {
        "model": model,
        "backend": scorer.documents.engine,
        **warning_field(scorer.timings.warnings),
        "scoring": scorer.scoring,
    }
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


def _tokens(text: Text) -> dict[str, object]:
    return {
        "tokens": text.tokens,
        "token_ids": text.input_ids.tolist(),
        "offsets": text.offsets,
        "truncated": text.truncated,
        "unknown": np.flatnonzero(text.unknown).tolist(),
    }


def _result(ranker: Ranker, number: int) -> dict[str, object]:
    document = ranker.documents[number]
    fields: dict[str, object] = {"index": number, "score": document.score}
    if document.parts is not None:
        fields["parts"] = document.parts
    if ranker.options.explain == "tokens" and document.shares is not None:
        fields |= _tokens(ranker.scorer.document(number)) | {
            "shares": document.shares.tolist(),
            "completeness_error": document.error,
            "partial": document.partial,
            "computed": document.computed,
        }
    return fields


def _contrast(scores: Sequence[float], sides: Sequence[ComparedDocument]) -> dict[str, object]:
    (first, other), occlusions = sides, [side.occlusion for side in sides]
    return {
        "documents": [side.number for side in sides],
        "ranks": [rank_with(scores, side.number, side.score) for side in sides],
        "difference": first.score - other.score,
        "words": [row._asdict() for row in differences(first, other)],
        "other": [side.rest for side in sides],
        "completeness_error": completeness_error(first, other),
        "without": [_without(scores, side) for side in sides],
        "partial": any(side.computed < len(side.order) for side in occlusions),
        "computed": [side.computed for side in occlusions],
    }


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
