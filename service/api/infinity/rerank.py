"""`POST /rerank` with `documents`: rank texts by relevance to a query, in Infinity's format."""

from __future__ import annotations

from typing import ClassVar, Literal

from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from model.numerics.task_head import TaskConfig
from service.api.drop_in.ranking import Ranking, ranked, ranker
from service.api.infinity.fields import InfinityReply, InfinityRequest, Text, Texts, envelope
from service.api.wire.reserved import CHARACTER_BYTES, reserve
from service.api.wire.route import model_of
from service.inference.core import Inference
from service.inference.tokenization.tokenizer import Options

RANK_BYTES = 88
"""Predicted bytes of a result in JSON, without its document."""
_CUT = Options(truncate=True, naming="documents[{}]")


class InfinityRerankRequest(InfinityRequest):
    """Request body of `POST /rerank` with `documents`."""

    form_fields: ClassVar[frozenset[str]] = frozenset({"documents"})

    query: Text
    documents: Texts = Field(description="Texts to rank.")
    return_documents: bool = Field(False, description="Whether each result includes its document.")
    raw_scores: bool = Field(
        False, description="Logits without a sigmoid; MaxSim scores never get one."
    )
    top_n: int | None = Field(None, gt=0, description="Maximum number of results; all when null.")

    def check_model(self, inference: Inference) -> TaskConfig:
        """Return the model's task head: one label, or a vector for each token."""
        return ranker(inference)


class Rank(BaseModel):
    """Score of a document, its index in the request, and its text if requested."""

    relevance_score: float
    index: int
    document: str | None = None


class RerankReply(InfinityReply):
    """Results, the most relevant document first."""

    object: Literal["rerank"] = "rerank"
    results: list[Rank]


async def rerank(body: InfinityRerankRequest, request: Request) -> Response:
    """Rank the documents, the most relevant to the query first; long documents are cut."""
    model = model_of(request)
    body.check_model(model.inference)
    size = RANK_BYTES * len(body.documents)
    if body.return_documents:
        size += CHARACTER_BYTES * sum(map(len, body.documents))
    with reserve(request, size) as reply:
        ranking = await ranked(request, body.query, body.documents, _CUT)

        def content() -> object:
            outer = envelope("rerank", model.name, ranking.timings)
            return outer | {"results": ranks(body, ranking)}

        return await reply.json(content, ranking.timings)


def ranks(body: InfinityRerankRequest, ranking: Ranking) -> list[dict[str, object]]:
    """Return the first `top_n` results, the largest score first."""
    scores = ranking.scores(raw=body.raw_scores)
    return [
        {
            "relevance_score": scores[index],
            "index": index,
            "document": body.documents[index] if body.return_documents else None,
        }
        for index in ranking.order()[: body.top_n]
    ]
