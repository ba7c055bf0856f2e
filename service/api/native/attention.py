"""`POST /attention`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.api.deadline import deadline
from service.api.json_route import JsonRoute
from service.api.native.replies import AttentionReply
from service.api.native.requests import AttentionRequest
from service.api.reply import documented, respond, wants_safetensors

router = APIRouter(route_class=JsonRoute, tags=["inference"])


@router.post("/attention", response_model=None, responses=documented(AttentionReply))
async def attention(body: AttentionRequest, request: Request) -> Response:
    """The attention weights of any head of any layer."""
    predictor = request.app.state.predictor
    binary = wants_safetensors(request)
    return respond(await predictor.attention(body, binary=binary, finish_by=deadline(request)))
