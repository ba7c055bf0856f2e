"""`POST /rerank` with `documents`: texts by their scores with a query, in Infinity's form."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from model.artifact.task import TaskConfig
from service.api.drop_in.ranking import Ranking, ranked, ranker
from service.api.drop_in.reserved import CHARACTER_BYTES, reserve, respond
from service.api.infinity.fields import InfinityReply, InfinityRequest, Text, Texts, envelope
from service.api.wire.route import model_of
from service.inference.core import Inference
from service.inference.tokenization.tokenizer import Options

RANK_BYTES = 88
"""Of a text's rank in JSON, without the text."""
_CUT = Options(truncate=True, naming="documents[{}]")


class InfinityRerankRequest(InfinityRequest):
    """`POST /rerank` with `documents`."""

    form_fields: ClassVar[frozenset[str]] = frozenset({"documents"})

    query: Text
    documents: Texts = Field(description="What is ranked.")
    return_documents: bool = Field(False, description="Whether each rank has its text.")
    raw_scores: bool = Field(
        False, description="Logits, without sigmoid; MaxSim is given as it is in any case."
    )
    top_n: int | None = Field(None, gt=0, description="The most ranks of the reply; all when null.")

    def check_model(self, inference: Inference) -> TaskConfig:
        """The task head: one label, or a vector a token.

        Raises:
            NoTaskHead: the model ranks nothing.

        """
        return ranker(inference)


class Rank(BaseModel):
    """A document's score, its number in the request, and its text where that was asked for."""

    relevance_score: float
    index: int
    document: str | None = None


class RerankReply(InfinityReply):
    """The documents, the most relevant first."""

    object: Literal["rerank"] = "rerank"
    results: list[Rank]


async def rerank(body: InfinityRerankRequest, request: Request) -> Response:
    """The documents, the most relevant to the query first; those that are too long are cut."""
    model = model_of(request)
    body.check_model(model.inference)
    size = RANK_BYTES * len(body.documents)
    if body.return_documents:
        size += CHARACTER_BYTES * sum(map(len, body.documents))
    with reserve(request, size) as held:
        ranking = await ranked(request, body.query, body.documents, _CUT)

        def content() -> Any:
            outer = envelope("rerank", model.name, ranking.timings)
            return outer | {"results": ranks(body, ranking)}

        return await respond(held, size, content, ranking.timings)


def ranks(body: InfinityRerankRequest, ranking: Ranking) -> list[dict[str, Any]]:
    """As many as were asked for, the largest score first."""
    scores = ranking.scores(raw=body.raw_scores)
    return [
        {
            "relevance_score": scores[index],
            "index": index,
            "document": body.documents[index] if body.return_documents else None,
        }
        for index in ranking.order()[: body.top_n]
    ]
