"""Rerank requests in vLLM's format, on paths shared with other dialects.

A body is recognised by fields that only vLLM has; see `FORM_FIELDS`.
"""

from __future__ import annotations

from typing import ClassVar

from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from model.numerics.task_head import TaskConfig
from service.api.drop_in.documents import Documents, shortened
from service.api.vllm.errors import error_response
from service.api.vllm.fields import VllmRequest, envelope
from service.api.vllm.scoring import Pairs, scored, scorer
from service.api.wire.reserved import CHARACTER_BYTES, reserve
from service.api.wire.route import caller_of, model_of
from service.api.wire.text_warnings import WarnedReply, warning_field
from service.inference.core import Inference
from service.request_context import ErrorForm

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


async def rerank(body: VllmRerankRequest, request: Request) -> Response:
    """Rank the documents, the most relevant to the query first."""
    model = model_of(request)
    body.check_model(model.inference)
    size = RANK_BYTES * len(body.documents) + CHARACTER_BYTES * sum(map(len, body.documents))
    with reserve(request, size) as reply:
        texts = body.documents
        if body.max_tokens_per_doc is not None:
            most = body.max_tokens_per_doc
            texts = list(await shortened(model.inference, texts, most, caller_of(request)))
        pairs = Pairs([body.query], texts, ("query", "documents"))
        ranking = await scored(request, pairs, body)
        scores = ranking.scores(raw=body.use_activation is False)

        def content() -> object:
            outer = envelope(request, "rerank", model.name, ranking.timings)
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

        return await reply.json(content, ranking.timings)
