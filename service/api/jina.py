"""`POST /v1/rerank`: rank documents by relevance to a query, in Jina's and Cohere's formats.

Requests of Jina and of version 1 of Cohere's API cannot be distinguished, so a reply has the
fields of both.
"""

from __future__ import annotations

import orjson
from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from service.api.cohere.replies import Meta, new_id, searched
from service.api.cohere.rerank import RankRequest
from service.api.vllm import score as vllm
from service.api.vllm.fields import with_vllm_errors
from service.api.wire.problems import error_reply, problems_in_form
from service.api.wire.reply_headers import WarnedReply, warning_field
from service.api.wire.route import ApiExchange, JsonRoute, json_reply, reserve
from service.errors import NoTaskHead, ServiceError

_BAD_REQUEST = 400


class ErrorResponse(BaseModel):
    """Error message, as Jina's `detail` and Cohere's `message`."""

    detail: str
    message: str


def error_response(error: ServiceError, _: str) -> Response:
    """Return the reply of an error; a model that cannot answer has status 400 in both APIs."""
    body = {"detail": error.detail, "message": error.detail}
    response = error_reply(error, orjson.dumps(body), "application/json")
    if error.status == NoTaskHead.status:
        response.status_code = _BAD_REQUEST
    return response


ERRORS = problems_in_form(ErrorResponse)
"""Error replies of a route, for the OpenAPI document."""


router = APIRouter(route_class=JsonRoute, tags=["jina"])


class JinaRerankRequest(RankRequest):
    """Request body of `POST /v1/rerank`."""

    return_documents: bool = Field(True, description="Whether each result includes its document.")


class Document(BaseModel):
    """Document of the request."""

    text: str


class Rank(BaseModel):
    """Index of a document in the request, its score, and the document if requested."""

    index: int
    relevance_score: float
    document: Document | None = None


class TokenUsage(BaseModel):
    """Token counts of a request."""

    total_tokens: int
    prompt_tokens: int


class RerankReply(WarnedReply):
    """Results, the most relevant document first."""

    id: str
    model: str
    usage: TokenUsage
    results: list[Rank]
    meta: Meta


@router.post(
    "/v1/rerank",
    response_model=None,
    responses={
        200: {"model": RerankReply | vllm.VllmRerankReply},
        **with_vllm_errors(ERRORS),
    },
)
async def rerank(
    body: JinaRerankRequest | vllm.VllmRerankRequest, exchange: ApiExchange
) -> Response:
    """Rank the documents, the most relevant to the query first; long documents are cut.

    A body with a field that only vLLM has is answered in its format.
    """
    if isinstance(body, vllm.VllmRerankRequest):
        return await vllm.rerank(body, exchange)
    model = exchange.model
    body.check_model(model.inference)
    size = body.reply_bytes(documents=body.return_documents)
    reserve(exchange, size)
    ranking = await body.ranking(exchange)
    tokens = ranking.timings.tokens

    def content() -> object:
        return {
            "id": new_id(),
            "model": model.name,
            "usage": {"total_tokens": tokens, "prompt_tokens": tokens},
            "results": body.ranks(ranking, documents=body.return_documents),
            "meta": searched("1", len(body.documents), ranking.timings),
            **warning_field(ranking.timings.warnings),
        }

    return await json_reply(exchange, content, ranking.timings)


ROUTERS = (router,)
