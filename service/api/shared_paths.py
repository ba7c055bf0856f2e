"""Rerank paths that several dialects share; the fields of the body identify the dialect.

Errors use the format of the body's dialect once it is known, before that of the first dialect.
vLLM's requests have a field that only vLLM has, such as `truncate_prompt_tokens`.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from service.api import cohere, infinity, vllm
from service.api.drop_in.forms import errors_of_both
from service.api.tei import scores as tei
from service.api.tei.vectors import ERRORS as TEI_ERRORS
from service.api.wire.replies import replies
from service.api.wire.route import ApiExchange, JsonRoute
from service.api.wire.schemas import any_of

tei_router = APIRouter(route_class=JsonRoute, tags=["tasks"])
cohere_router = APIRouter(route_class=JsonRoute, tags=["cohere"])
jina_router = APIRouter(route_class=JsonRoute, tags=["jina"])


@tei_router.post(
    "/rerank",
    responses=replies(
        any_of([tei.RANK], infinity.RERANK_REPLY, vllm.RERANK_REPLY),
        errors_of_both(TEI_ERRORS, infinity.ERRORS),
    ),
)
async def rerank(
    body: tei.RerankRequest | vllm.VllmRerankRequest | infinity.InfinityRerankRequest,
    exchange: ApiExchange,
) -> Response:
    """Rank texts by relevance to a query: `texts` in TEI's format, `documents` in Infinity's.

    vLLM's format has `documents` and a field that only vLLM has, such as `truncate_prompt_tokens`.
    """
    return await body.answer(exchange)


@cohere_router.post(
    "/v2/rerank",
    responses=replies(
        any_of(cohere.RERANK_REPLY, vllm.RERANK_REPLY), errors_of_both(cohere.ERRORS, vllm.ERRORS)
    ),
)
async def rerank_v2(
    body: cohere.CohereRankRequest | vllm.VllmRerankRequest, exchange: ApiExchange
) -> Response:
    """Rank the documents, the most relevant to the query first; long documents are cut.

    A body with a field that only vLLM has is answered in vLLM's format.
    """
    return await body.answer(exchange)


@jina_router.post(
    "/v1/rerank",
    responses=replies(
        any_of(cohere.JINA_RERANK_REPLY, vllm.RERANK_REPLY),
        errors_of_both(cohere.JINA_ERRORS, vllm.ERRORS),
    ),
)
async def rerank_v1(
    body: cohere.JinaRerankRequest | vllm.VllmRerankRequest, exchange: ApiExchange
) -> Response:
    """Rank the documents, the most relevant to the query first; long documents are cut.

    A body with a field that only vLLM has is answered in its format.
    """
    return await body.answer(exchange)
