"""Rerank requests in Voyage's form, on the path that Jina and Cohere have too.

https://docs.voyageai.com/reference/reranker-api
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from model.artifact.task import TaskConfig
from service.api.drop_in.documents import NAMING, Documents
from service.api.drop_in.ranking import ranked, ranker
from service.api.drop_in.reserved import CHARACTER_BYTES, reserve, respond
from service.api.native.texts import LenientRequest
from service.api.wire.notices import NoticedReply, notice_field
from service.api.wire.route import model_of
from service.inference.core import Inference
from service.inference.tokenization.tokenizer import Options

RANK_BYTES = 72
"""Bytes of a document's rank in JSON, without the document."""


class VoyageRerankRequest(LenientRequest):
    """A rerank request with one of the fields that only Voyage has: `truncation` or `top_k`."""

    form_fields: ClassVar[frozenset[str]] = frozenset(("truncation", "top_k"))

    query: str
    documents: Documents
    top_k: int | None = Field(
        None, ge=1, description="The most ranks of the reply; all by default."
    )
    truncation: bool = Field(
        True, description="Cut a query and a document that are too long together, or refuse them."
    )
    return_documents: bool = Field(False, description="Whether each rank has its document.")

    def check_model(self, inference: Inference) -> TaskConfig:
        """Return the task head that ranks.

        Raises:
            NoTaskHead: the model does not rank.

        """
        return ranker(inference)


class VoyageRank(BaseModel):
    """Score of a document, its index in the request, and the document where it is asked for."""

    relevance_score: float
    index: int
    document: str | None = None


class VoyageUsage(BaseModel):
    """Number of tokens of a request."""

    total_tokens: int


class VoyageRerankReply(NoticedReply):
    """Ranks of the documents, the most relevant first."""

    object: Literal["list"]
    data: list[VoyageRank]
    model: str
    usage: VoyageUsage


async def rerank(body: VoyageRerankRequest, request: Request) -> Response:
    """Answer with the ranks of the documents, the most relevant first."""
    model = model_of(request)
    body.check_model(model.inference)
    documents = body.documents
    characters = sum(map(len, documents)) if body.return_documents else 0
    size = RANK_BYTES * len(documents) + CHARACTER_BYTES * characters
    with reserve(request, size) as held:
        options = Options(truncate=body.truncation, naming=NAMING)
        ranking = await ranked(request, body.query, documents, options)
        scores = ranking.scores()

        def rank(index: int) -> dict[str, Any]:
            document = {"document": documents[index]} if body.return_documents else {}
            return {"relevance_score": scores[index], "index": index, **document}

        def content() -> Any:
            return {
                "object": "list",
                "data": [rank(index) for index in ranking.order()[: body.top_k]],
                "model": model.name,
                "usage": {"total_tokens": ranking.timings.tokens},
                **notice_field(ranking.timings.notices),
            }

        return await respond(held, size, content, ranking.timings)
