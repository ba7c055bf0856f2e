"""Rerank requests in Voyage's format, on the path shared with Jina and Cohere.

https://docs.voyageai.com/reference/reranker-api
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from model.numerics.task_head import TaskConfig
from service.api.drop_in.documents import NAMING, Documents
from service.api.drop_in.ranking import ranked, ranker
from service.api.native.texts import LenientRequest
from service.api.wire.reserved import CHARACTER_BYTES, reserve
from service.api.wire.route import model_of
from service.api.wire.text_warnings import WarnedReply, warning_field
from service.inference.core import Inference
from service.inference.tokenization.tokenizer import Options

RANK_BYTES = 72
"""Predicted bytes of a result in JSON, without its document."""


class VoyageRerankRequest(LenientRequest):
    """Rerank request with a field that only Voyage has: `truncation` or `top_k`."""

    form_fields: ClassVar[frozenset[str]] = frozenset(("truncation", "top_k"))

    query: str
    documents: Documents
    top_k: int | None = Field(None, ge=1, description="Maximum number of results; all by default.")
    truncation: bool = Field(
        True, description="Truncate pairs of query and document that are too long, or reject them."
    )
    return_documents: bool = Field(False, description="Whether each result includes its document.")

    def check_model(self, inference: Inference) -> TaskConfig:
        """Return the model's task head for ranking.

        Raises:
            NoTaskHead: the model is not a reranker.

        """
        return ranker(inference)


class VoyageRank(BaseModel):
    """Score of a document, its index in the request, and the document if requested."""

    relevance_score: float
    index: int
    document: str | None = None


class VoyageUsage(BaseModel):
    """Number of tokens of a request."""

    total_tokens: int


class VoyageRerankReply(WarnedReply):
    """Results, the most relevant document first."""

    object: Literal["list"]
    data: list[VoyageRank]
    model: str
    usage: VoyageUsage


async def rerank(body: VoyageRerankRequest, request: Request) -> Response:
    """Rank the documents, the most relevant to the query first."""
    model = model_of(request)
    body.check_model(model.inference)
    documents = body.documents
    characters = sum(map(len, documents)) if body.return_documents else 0
    size = RANK_BYTES * len(documents) + CHARACTER_BYTES * characters
    with reserve(request, size) as reply:
        options = Options(truncate=body.truncation, naming=NAMING)
        ranking = await ranked(request, body.query, documents, options)
        scores = ranking.scores()

        def rank(index: int) -> dict[str, object]:
            document = {"document": documents[index]} if body.return_documents else {}
            return {"relevance_score": scores[index], "index": index, **document}

        def content() -> object:
            return {
                "object": "list",
                "data": [rank(index) for index in ranking.order()[: body.top_k]],
                "model": model.name,
                "usage": {"total_tokens": ranking.timings.tokens},
                **warning_field(ranking.timings.warnings),
            }

        return await reply.json(content, ranking.timings)
