"""Routes in vLLM's formats: /pooling, /score and /v1/score, and its form of rerank requests.

Its reranks share their paths with other dialects: see `service.api.dialects`.

Notation: S tokens of one text, H hidden size, D features of a vector, C labels.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import ClassVar, Literal

import numpy as np
from fastapi import APIRouter
from pydantic import Field, model_validator
from starlette.responses import Response

from model.numerics.task_head import TaskKind
from service.api.drop_in.embedding import (
    FORMS,
    NESTED_ERROR,
    UNSATISFIABLE,
    USAGE,
    ListForm,
    check_embedder,
    json_error,
    prepare_embedding,
    usage,
    without_prompt,
)
from service.api.drop_in.scores import Documents, Ranking, ScoresRequest, ranked
from service.api.messages import MessagesRequest, TruncatingRequest
from service.api.wire.media import JSON
from service.api.wire.pictures import loaded, wrong
from service.api.wire.replies import WARNED, problems_in_form, replies, warning_field
from service.api.wire.route import ApiExchange, JsonRoute, PartsResponse
from service.api.wire.schemas import any_of, named
from service.engines.contract import Floats
from service.errors import NoTaskHead, ServiceError, Unprocessable
from service.exchange import ErrorForm
from service.inference.core import Inference
from service.inference.encoding import EncodeOptions
from service.inference.ranking.choice import RankTexts, check_reranker
from service.inference.tasks.task_heads import probabilities, task_scores
from service.inference.timings import Timings

_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    500: "InternalServerError",
    501: "NotImplementedError",
}


def error_response(error: ServiceError, _: str) -> Response:
    """Return the reply of an error; its type is the status's phrase if vLLM has no name for it."""
    status = UNSATISFIABLE.get(error.status, error.status)
    kind = _TYPES.get(status) or HTTPStatus(status).phrase
    nested = {"message": error.detail, "type": kind, "param": None, "code": status}
    return json_error(error, {"error": nested}, UNSATISFIABLE)


ERRORS = problems_in_form(NESTED_ERROR, UNSATISFIABLE)
"""Error replies of a route, for the OpenAPI document."""
_COUNTS = ("prompt_tokens", "total_tokens", "completion_tokens")
_ENVELOPE = {
    "id": str,
    "object": "list",
    "created": int,
    "model": str,
    "usage": named("VllmUsage", {**dict.fromkeys(_COUNTS, int), "prompt_tokens_details?": None}),
    **WARNED,
}
"""Schema of `envelope`."""


def envelope(exchange: ApiExchange, kind: str, timings: Timings) -> dict[str, object]:
    """Return the fields of every reply beside its data."""
    more = {"completion_tokens": 0, "prompt_tokens_details": None}
    return {
        "id": f"{kind}-{exchange.request_id}",
        "object": "list",
        "created": int(time.time()),
        "model": exchange.model.name,
        "usage": usage(timings) | more,
        **warning_field(timings.warnings),
    }


router = APIRouter(route_class=JsonRoute, tags=["vllm"])
PoolingTask = Literal["embed", "token_embed", "classify", "token_classify"]
TASKS: dict[TaskKind | None, tuple[PoolingTask, ...]] = {
    None: ("embed", "token_embed"),
    "sequence_classification": ("classify",),
    "token_classification": ("token_classify",),
    "late_interaction": ("token_embed",),
    "hybrid": ("embed", "token_embed"),
}
"""Task head → pooling tasks that the model supports, the default first."""


class PoolingRequest(MessagesRequest):
    """Request body of `POST /pooling`."""

    task: PoolingTask | None = Field(None, description="Vectors or labels, of texts or of tokens.")
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="base64 = little-endian float32, row-major."
    )

    def check_model(self, inference: Inference) -> PoolingTask:
        """Return the pooling task to compute."""
        task = inference.manifest.task
        kind = task.kind if task else None
        if kind not in TASKS:
            check_embedder(inference)
        known = TASKS[kind]
        if self.task is not None and self.task not in known:
            raise NoTaskHead(
                f"{inference.manifest.model} has no task {self.task}; it has {', '.join(known)}"
            )
        wanted = self.task or known[0]
        multivector = task is not None and "multivector" in task.vectors
        if multivector and wanted == "token_embed" and self.use_activation is False:
            raise Unprocessable("use_activation: this model's token vectors are unit vectors")
        return wanted


_OUTPUT = {"index": int, "object": "pooling", "data": any_of([[float]], [float], str)}
POOLING_REPLY = named("PoolingReply", {**_ENVELOPE, "data": [_OUTPUT]})


@router.post("/pooling", responses=replies(POOLING_REPLY, ERRORS))
async def pooling(body: PoolingRequest, exchange: ApiExchange) -> Response:
    """Return a vector or probabilities of each text or of each of its tokens."""
    model, inference, activation = exchange.model, exchange.model.inference, body.use_activation
    task, head = body.check_model(inference), inference.manifest.task
    body.check_inputs(model)
    body.check_length(inference.limits.max_tokens)
    options = body.options("input[{}]", without_prompt(inference))

    def closing(timings: Timings) -> Mapping[str, object]:
        return envelope(exchange, "pooling", timings)

    opening, before = b'{"data":[', b'{"index":%d,"object":"pooling","data":'
    form = ListForm(opening, before, b"}", closing, body.encoding_format)
    if head is None or head.kind == "hybrid":
        output = ("multivector" if head else "tokens") if task == "token_embed" else "pooled"
        wanted = EncodeOptions((output,), normalize=activation)
        embedding = await prepare_embedding(exchange, body.given, options, wanted)
        unit = inference.sentence.normalize if activation is None else activation
        finish = _unit_rows if output == "tokens" and unit else None
        return await embedding.answer(exchange, form, finish)
    inputs = await loaded(body.given, exchange)
    prepared = await inference.prepare(inputs, options, exchange.call(), "encode")
    rows = prepared.timings.tokens if task.startswith("token_") else len(inputs)
    size = round(FORMS[form.kind].feature_bytes * rows * head.outputs)
    exchange.reserve(size + form.item_bytes * len(inputs))
    arrays = await task_scores(inference, prepared, head)
    if activation is not False and head.kind != "late_interaction":
        arrays = await asyncio.to_thread(lambda: [probabilities(logits) for logits in arrays])
    return PartsResponse([form.pieces(arrays, prepared.timings)], JSON, prepared.timings)


def _unit_rows(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.maximum(lengths, np.float32(1e-12))


Pairs = tuple[Sequence[str], Sequence[str]]
"""Texts to score: one text with each text of the other side, or pairs by position."""


def cosines(inference: Inference) -> bool:
    """Return whether the model scores pairs by the cosine of their vectors; reject other models."""
    task = inference.manifest.task
    if task is None or task.kind == "hybrid":
        return True
    check_reranker(inference)
    return False


class PairsRequest(TruncatingRequest, ScoresRequest):
    """Request for scores of pairs."""

    needs = cosines

    def rank_texts(self, inference: Inference, pairs: Pairs, names: tuple[str, str]) -> RankTexts:
        """Return the texts of at least one pair, with their names in error messages."""
        self.check_length(inference.limits.max_tokens)
        texts = RankTexts(*pairs, self.options("{}"), names=names)
        if cosines(inference):
            prompts = without_prompt(inference), without_prompt(inference)
            texts = replace(texts, prompts=prompts, similarity="cosine")
        return texts

    @property
    def raw(self) -> bool:
        """Whether logits stay logits."""
        return self.use_activation is False


SCORE_BYTES = 64
"""Predicted bytes of a pair's score in JSON."""
NAMES = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))
"""Accepted names of the two sides; the first pair of names in the request counts."""
Side = str | list[str]


class ScoreRequest(PairsRequest):
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
        (first, second), _ = self.pairs
        if len(first) not in (1, len(second)) or not second:
            raise wrong(
                f"{len(first)} texts and {len(second)}: one with many, or as many with as many are "
                "scored"
            )
        return self

    @property
    def pairs(self) -> tuple[Pairs, tuple[str, str]]:
        """Texts of both sides, and the names of their fields."""
        for names in NAMES:
            first, second = (getattr(self, name) for name in names)
            if first is not None and second is not None:
                return (_listed(first), _listed(second)), names
        raise wrong("text_1 and text_2 are needed")

    async def ranking(self, exchange: ApiExchange) -> Ranking:
        """Reserve the reply, and score each pair."""
        pairs, (first, second) = self.pairs
        names = f"{first}[{{}}]", f"{second}[{{}}]"
        texts = self.rank_texts(exchange.model.inference, pairs, names)
        return await ranked(exchange, texts, SCORE_BYTES)

    def content(self, exchange: ApiExchange, ranking: Ranking) -> object:
        """Return the reply, in the order of the request."""
        data = [
            {"index": index, "object": "score", "score": score}
            for index, score in enumerate(ranking.scores(raw=self.raw))
        ]
        return envelope(exchange, "score", ranking.timings) | {"data": data}


def _listed(side: Side) -> list[str]:
    return [side] if isinstance(side, str) else side


_SCORE = {"index": int, "object": "score", "score": float}
SCORE_REPLY = named("ScoreReply", {**_ENVELOPE, "data": [_SCORE]})


@router.post("/v1/score", responses=replies(SCORE_REPLY, ERRORS))
@router.post("/score", responses=replies(SCORE_REPLY, ERRORS))
async def score(body: ScoreRequest, exchange: ApiExchange) -> Response:
    """Score each pair by a cross-encoder, MaxSim, or the cosine of its vectors."""
    return await body.answer(exchange)


FORM_FIELDS = frozenset(
    (
        *("truncate_prompt_tokens", "truncation_side", "use_activation", "activation", "softmax"),
        *("request_id", "cache_salt", "mm_processor_kwargs", "max_tokens_per_query", "instruction"),
    )
)
"""Fields that no other service's rerank request has."""


class VllmRerankRequest(PairsRequest):
    """Rerank request with one of `FORM_FIELDS`."""

    form_fields: ClassVar[frozenset[str]] = FORM_FIELDS
    error_form: ClassVar[ErrorForm | None] = error_response

    query: str
    documents: Documents
    top_n: int = Field(0, ge=0, description="Maximum number of results; all when 0.")
    max_tokens_per_doc: int | None = Field(
        None, ge=1, description="Tokens after which a document is cut; no cut by default."
    )

    async def ranking(self, exchange: ApiExchange) -> Ranking:
        """Reserve the reply, and score the documents, each cut to `max_tokens_per_doc`."""
        pairs, names = ([self.query], self.documents), ("the query", "documents[{}]")
        texts = self.rank_texts(exchange.model.inference, pairs, names)
        return await ranked(exchange, texts, returned=True, max_tokens=self.max_tokens_per_doc)

    def content(self, exchange: ApiExchange, ranking: Ranking) -> object:
        """Return the reply, the largest score first."""
        results = [
            {"index": index, "document": {"text": self.documents[index]}, "relevance_score": score}
            for index, score in ranking.best(self.top_n or None, raw=self.raw)
        ]
        outer = envelope(exchange, "rerank", ranking.timings)
        return {
            "id": outer["id"],
            "model": exchange.model.name,
            "usage": usage(ranking.timings),
            "results": results,
            **warning_field(ranking.timings.warnings),
        }


_RANK = {"index": int, "document": {"text": str}, "relevance_score": float}
RERANK_REPLY = named(
    "VllmRerankReply", {"id": str, "model": str, "usage": USAGE, "results": [_RANK], **WARNED}
)


ROUTERS = (router,)
