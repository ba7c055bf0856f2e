"""`POST /attention`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.replies import AttentionReply
from service.routes.body import JsonRoute
from service.routes.deadline import deadline
from service.routes.reply import documented, respond, wants_safetensors
from service.schemas import AttentionRequest

router = APIRouter(route_class=JsonRoute, tags=["inference"])


@router.post("/attention", response_model=None, responses=documented(AttentionReply))
async def attention(body: AttentionRequest, request: Request) -> Response:
    """The attention weights of any head of any layer."""
    predictor = request.app.state.predictor
    binary = wants_safetensors(request)
    return respond(await predictor.attention(body, binary=binary, finish_by=deadline(request)))
