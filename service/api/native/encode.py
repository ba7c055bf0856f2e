"""`POST /encode`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.api.deadline import deadline
from service.api.json_route import JsonRoute
from service.api.native.replies import EncodeReply
from service.api.native.requests import EncodeRequest
from service.api.reply import documented, respond, wants_safetensors

router = APIRouter(route_class=JsonRoute, tags=["inference"])


@router.post("/encode", response_model=None, responses=documented(EncodeReply))
async def encode(body: EncodeRequest, request: Request) -> Response:
    """Contextual embeddings: token-level vectors, one pooled vector a text, or both."""
    predictor = request.app.state.predictor
    binary = wants_safetensors(request)
    return respond(await predictor.encode(body, binary=binary, finish_by=deadline(request)))
