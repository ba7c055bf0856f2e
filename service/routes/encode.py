"""`POST /encode`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.replies import EncodeReply
from service.routes.body import JsonRoute
from service.routes.deadline import deadline
from service.routes.reply import documented, respond, wants_safetensors
from service.schemas import EncodeRequest

router = APIRouter(route_class=JsonRoute, tags=["inference"])


@router.post("/encode", response_model=None, responses=documented(EncodeReply))
async def encode(body: EncodeRequest, request: Request) -> Response:
    """Contextual embeddings: token-level vectors, one pooled vector a text, or both."""
    predictor = request.app.state.predictor
    binary = wants_safetensors(request)
    return respond(await predictor.encode(body, binary=binary, finish_by=deadline(request)))
