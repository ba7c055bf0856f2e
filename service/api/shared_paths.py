"""Paths that several dialects share; the fields of the body identify the dialect.

Errors use the format of the body's dialect once it is known, before that of the first dialect.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from service.api.infinity import embeddings as infinity
from service.api.infinity import fields as infinity_errors
from service.api.tei import rerank as tei
from service.api.tei import texts as tei_errors
from service.api.vllm import score as vllm
from service.api.wire.reply_headers import Responses
from service.api.wire.route import ApiExchange, JsonRoute

router = APIRouter(route_class=JsonRoute, tags=["tasks"])
_ERRORS: Responses = {
    **infinity_errors.ERRORS,
    **tei_errors.ERRORS,
    **{
        status: {
            "description": tei_errors.ERRORS[status]["description"],
            "model": tei_errors.ErrorResponse | infinity_errors.ErrorResponse,
        }
        for status in infinity_errors.ERRORS.keys() & tei_errors.ERRORS.keys()
    },
}


@router.post(
    "/rerank",
    response_model=None,
    responses={
        200: {"model": list[tei.Rank] | infinity.RerankReply | vllm.VllmRerankReply},
        **_ERRORS,
    },
)
async def rerank(
    body: tei.RerankRequest | vllm.VllmRerankRequest | infinity.InfinityRerankRequest,
    exchange: ApiExchange,
) -> Response:
    """Rank texts by relevance to a query: `texts` in TEI's format, `documents` in Infinity's.

    vLLM's format has `documents` and a field that only vLLM has, such as `truncate_prompt_tokens`.
    """
    if isinstance(body, vllm.VllmRerankRequest):
        return await vllm.rerank(body, exchange)
    if isinstance(body, infinity.InfinityRerankRequest):
        return await infinity.rerank(body, exchange)
    return await tei.rerank(body, exchange)
