"""`POST /score`, `/v1/score` and `/rerank`: scores of text pairs, in vLLM's format."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, Field, model_validator
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from model.numerics.late_interaction import LateInteraction
from model.numerics.task_head import TaskConfig
from service.api.drop_in.prompts import without_prompt
from service.api.drop_in.ranking import Documents, Ranking, ranker, shortened
from service.api.vllm.fields import ERRORS, Usage, VllmRequest, envelope, error_response
from service.api.wire.reply_headers import WarnedReply, warning_field
from service.api.wire.route import (
    CHARACTER_BYTES,
    ApiExchange,
    JsonRoute,
    caller_of,
    hold,
    json_reply,
    reserve,
)
from service.engines.contract import Floats
from service.exchange import ErrorForm
from service.inference.core import Inference
from service.inference.encoding import EncodeOptions
from service.inference.tasks.late_interaction import prepare_ranking, rank
from service.inference.tasks.task_heads import task_scores
from service.inference.timings import Timings


@dataclass(frozen=True)
class Pairs:
    """Texts to score: one text with each text of the other side, or pairs by position."""

    first: Sequence[str]
    """First text of each pair, or one text for all pairs."""
    second: Sequence[str]
    names: tuple[str, str] = ("text_1", "text_2")
    """Names of the request's fields with the two sides."""

    def both(self) -> list[tuple[str, str]]:
        """Return the P pairs."""
        if len(self.first) == 1:
            return [(self.first[0], text) for text in self.second]
        return list(zip(self.first, self.second, strict=True))


def scorer(inference: Inference) -> TaskConfig | None:
    """Return the model's task head for scoring pairs, or None if it embeds texts.

    Raises:
        NoTaskHead: the model has another task head.

    """
    task = inference.manifest.task
    return None if task is None or task.kind == "hybrid" else ranker(inference)


async def scored(exchange: ApiExchange, pairs: Pairs, body: VllmRequest) -> Ranking:
    """Score each pair, of at least one, in the order of the request.

    Raises:
        NoTaskHead: the model does not score pairs.
        Unprocessable: there are too many texts, or a text does not fit the model.
        ReplyTooLarge: the vectors would exceed the limit of a reply.
        Overloaded: the queue has no room, or the deadline cannot be met.
        ServiceError: the engine failed.

    """
    inference = exchange.model.inference
    body.check_length(inference.limits.max_tokens)
    task = scorer(inference)
    if task is None:
        return await _cosines(exchange, pairs, body)
    if task.late is None:
        return await _cross_encoded(exchange, pairs, body, task)
    return await _max_sims(exchange, pairs, body, task.late)


async def _cosines(exchange: ApiExchange, pairs: Pairs, body: VllmRequest) -> Ranking:
    inference, caller = exchange.model.inference, caller_of(exchange)
    sides = []
    for name, texts in zip(pairs.names, (pairs.first, pairs.second), strict=True):
        options = body.options(f"{name}[{{}}]", without_prompt(inference))
        sides.append(await inference.prepare(texts, options, caller, "encode"))
        await body.cut(sides[-1])
    first, second = sides
    prepared = replace(
        first, texts=[*first.texts, *second.texts], timings=first.timings + second.timings
    )
    hold(exchange, 4 * inference.vectors.kept() * len(prepared.texts))
    encodings = await inference.encode(prepared, EncodeOptions(("pooled",), normalize=True))
    vectors = [own["pooled"] for own in encodings]
    values = await asyncio.to_thread(_products, vectors, len(pairs.first))
    return Ranking(values, logits=False, timings=prepared.timings)


def _products(vectors: Sequence[Floats], queries: int) -> list[Floats]:
    """Return the dot product of each pair's unit vectors, `[1]`."""
    first, second = np.stack(vectors[:queries]), np.stack(vectors[queries:])
    return list(np.sum(first * second, axis=1, keepdims=True))


async def _cross_encoded(
    exchange: ApiExchange, pairs: Pairs, body: VllmRequest, task: TaskConfig
) -> Ranking:
    inference = exchange.model.inference
    options = body.options(f"the pair of {pairs.names[1]}[{{}}]")
    prepared = await inference.prepare(pairs.both(), options, caller_of(exchange), "encode")
    await body.cut(prepared)
    values = await task_scores(prepared, task)
    return Ranking(values, logits=True, timings=prepared.timings)


async def _max_sims(
    exchange: ApiExchange, pairs: Pairs, body: VllmRequest, late: LateInteraction
) -> Ranking:
    """Score one query after the other, each with all its documents."""
    inference, caller = exchange.model.inference, caller_of(exchange)
    asked: dict[str, list[int]] = {}
    for number, (query, _) in enumerate(both := pairs.both()):
        asked.setdefault(query, []).append(number)
    values: list[Floats] = [np.empty(0, np.float32)] * len(both)
    total: Timings | None = None
    for query, numbers in asked.items():
        documents = [both[number][1] for number in numbers]
        options = body.options("{}")
        ranking = await prepare_ranking(inference, late, query, documents, options, caller)
        await body.cut(ranking.query)
        await body.cut(ranking.documents)
        timings = ranking.timings
        hold(exchange, ranking.vector_bytes)
        scores = await rank(ranking, timings)
        for number, value in zip(numbers, scores, strict=True):
            values[number] = value
        total = timings if total is None else total + timings
    assert total is not None  # noqa: S101 - there is at least one pair
    return Ranking(values, logits=False, timings=total)


router = APIRouter(route_class=JsonRoute, tags=["vllm"])
SCORE_BYTES = 64
"""Predicted bytes of a pair's score in JSON."""
NAMES = (
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
    ("text_1", "text_2"),
)
"""Accepted names of the two sides; the first pair of names in the request counts."""
Side = str | list[str]


class ScoreRequest(VllmRequest):
    """Request body of `POST /score` and `/v1/score`."""

    text_1: Side | None = Field(None, description="A text, or as many texts as on the other side.")
    text_2: Side | None = Field(None, description="A text or a list of texts.")
    queries: Side | None = Field(None, description="As `text_1`.")
    documents: Side | None = Field(None, description="As `text_2`.")
    items: Side | None = Field(None, description="As `text_2`.")
    data_1: Side | None = Field(None, description="As `text_1`.")
    data_2: Side | None = Field(None, description="As `text_2`.")

    @model_validator(mode="after")
    def _sides(self) -> ScoreRequest:
        pairs = self.pairs
        if len(pairs.first) not in (1, len(pairs.second)) or not pairs.second:
            raise PydanticCustomError(
                "sides",
                "{first} texts and {second}: one with many, or as many with as many are scored",
                {"first": len(pairs.first), "second": len(pairs.second)},
            )
        return self

    @property
    def pairs(self) -> Pairs:
        """Texts of both sides."""
        for names in NAMES:
            first, second = (getattr(self, name) for name in names)
            if first is not None and second is not None:
                return Pairs(_listed(first), _listed(second), names)
        raise PydanticCustomError("sides", "text_1 and text_2 are needed")

    def check_model(self, inference: Inference) -> TaskConfig | None:
        """Return the model's task head for scoring pairs, or None if it embeds texts."""
        return scorer(inference)


def _listed(side: Side) -> list[str]:
    return [side] if isinstance(side, str) else side


class Score(BaseModel):
    """Index of a pair in the request, and its score."""

    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreReply(WarnedReply):
    """Scores in the order of the request."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Score]
    usage: Usage


@router.post("/v1/score", response_model=None, responses={200: {"model": ScoreReply}, **ERRORS})
@router.post("/score", response_model=None, responses={200: {"model": ScoreReply}, **ERRORS})
async def score(body: ScoreRequest, exchange: ApiExchange) -> Response:
    """Score each pair by a cross-encoder, MaxSim, or the cosine of its vectors."""
    model, pairs = exchange.model, body.pairs
    body.check_model(model.inference)
    size = SCORE_BYTES * len(pairs.second)
    reserve(exchange, size)
    ranking = await scored(exchange, pairs, body)
    scores = ranking.scores(raw=body.use_activation is False)

    def content() -> object:
        data = [
            {"index": index, "object": "score", "score": score}
            for index, score in enumerate(scores)
        ]
        return envelope(exchange, "score", model.name, ranking.timings) | {"data": data}

    return await json_reply(exchange, content, ranking.timings)


RANK_BYTES = 88
"""Predicted bytes of a result in JSON, without its document."""
FORM_FIELDS = frozenset(
    (
        *("truncate_prompt_tokens", "truncation_side", "use_activation", "activation", "softmax"),
        *("request_id", "cache_salt", "mm_processor_kwargs", "max_tokens_per_query", "instruction"),
    )
)
"""Fields that no other service's rerank request has."""


class VllmRerankRequest(VllmRequest):
    """Rerank request with one of `FORM_FIELDS`."""

    form_fields: ClassVar[frozenset[str]] = FORM_FIELDS
    error_form: ClassVar[ErrorForm | None] = error_response

    query: str
    documents: Documents
    top_n: int = Field(0, ge=0, description="Maximum number of results; all when 0.")
    max_tokens_per_doc: int | None = Field(
        None, ge=1, description="Tokens after which a document is cut; no cut by default."
    )

    def check_model(self, inference: Inference) -> TaskConfig | None:
        """Return the model's task head for scoring pairs, or None if it embeds texts."""
        return scorer(inference)


class VllmDocument(BaseModel):
    """Document of the request."""

    text: str


class VllmRank(BaseModel):
    """Document, its index in the request, and its score."""

    index: int
    document: VllmDocument
    relevance_score: float


class VllmRerankUsage(BaseModel):
    """Token counts of a request."""

    prompt_tokens: int
    total_tokens: int


class VllmRerankReply(WarnedReply):
    """Results, the most relevant document first."""

    id: str
    model: str
    usage: VllmRerankUsage
    results: list[VllmRank]


async def rerank(body: VllmRerankRequest, exchange: ApiExchange) -> Response:
    """Rank the documents, the most relevant to the query first."""
    model = exchange.model
    body.check_model(model.inference)
    size = RANK_BYTES * len(body.documents) + CHARACTER_BYTES * sum(map(len, body.documents))
    reserve(exchange, size)
    texts = body.documents
    if body.max_tokens_per_doc is not None:
        most = body.max_tokens_per_doc
        texts = list(await shortened(model.inference, texts, most, caller_of(exchange)))
    pairs = Pairs([body.query], texts, ("query", "documents"))
    ranking = await scored(exchange, pairs, body)
    scores = ranking.scores(raw=body.use_activation is False)

    def content() -> object:
        outer = envelope(exchange, "rerank", model.name, ranking.timings)
        tokens = ranking.timings.tokens
        results = [
            {
                "index": index,
                "document": {"text": body.documents[index]},
                "relevance_score": scores[index],
            }
            for index in ranking.order()[: body.top_n or None]
        ]
        return {
            "id": outer["id"],
            "model": model.name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "results": results,
            **warning_field(ranking.timings.warnings),
        }

    return await json_reply(exchange, content, ranking.timings)
