"""Paths that several dialects have, where the body tells which of them a request is in.

Errors have the form of the body's dialect once that is known, and of the first one until then.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.api.infinity import errors as infinity_errors
from service.api.infinity import rerank as infinity
from service.api.tei import errors as tei_errors
from service.api.tei import rerank as tei
from service.api.vllm import rerank as vllm
from service.api.wire.route import JsonRoute

router = APIRouter(route_class=JsonRoute, tags=["tasks"])
_ERRORS: dict[int | str, dict[str, Any]] = {
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
    request: Request,
) -> Response:
    """Texts by their scores with a query: TEI's form with `texts`, Infinity's with `documents`.

    vLLM's form has `documents` and a field that vLLM alone has, as `truncate_prompt_tokens`.
    """
    if isinstance(body, vllm.VllmRerankRequest):
        return await vllm.rerank(body, request)
    if isinstance(body, infinity.InfinityRerankRequest):
        return await infinity.rerank(body, request)
    return await tei.rerank(body, request)
