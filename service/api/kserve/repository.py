"""KServe's model repository extension: index, load and unload.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_repository.md
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from service.api.kserve.models import ERRORS
from service.api.wire.media import MODEL_PARAMETER
from service.api.wire.replies import replies
from service.api.wire.route import ApiExchange, admin_errors, read_admin
from service.api.wire.schemas import documented_body
from service.artifacts.repository import Target
from service.models.control import State, versions

STATES: dict[State, Literal["READY", "UNAVAILABLE", "LOADING", "UNLOADING"]] = {
    "serving": "READY",
    "loaded": "READY",
    "loading": "LOADING",
    "draining": "UNLOADING",
    "available": "UNAVAILABLE",
    "failed": "UNAVAILABLE",
}
"""State → state of the protocol."""

router = APIRouter(prefix="/v2/repository", tags=["kserve"])


class IndexRequest(BaseModel):
    """Request body of the index."""

    model_config = ConfigDict(extra="forbid")

    ready: bool = Field(False, description="List only versions that serve.")


class LoadParameters(BaseModel):
    """Parameters of a load."""

    model_config = ConfigDict(extra="forbid")

    version: str | None = Field(None, min_length=1, max_length=64)


class LoadRequest(BaseModel):
    """Request body of a load."""

    model_config = ConfigDict(extra="forbid")

    parameters: LoadParameters = LoadParameters()


class UnloadParameters(LoadParameters):
    """Parameters of an unload."""

    unload_dependents: bool = False


class UnloadRequest(BaseModel):
    """Request body of an unload."""

    model_config = ConfigDict(extra="forbid")

    parameters: UnloadParameters = UnloadParameters()


_RESPONSES = admin_errors(ERRORS)
_post = partial(router.post, response_class=Response, responses=_RESPONSES)
"""Decorator of a route whose reply has no body."""
_ENTRY = {"name": str, "version": str, "state": str, "reason": str}


@router.post(
    "/index", responses=replies([_ENTRY], _RESPONSES), openapi_extra=documented_body(IndexRequest)
)
async def index(exchange: ApiExchange) -> JSONResponse:
    """List all versions that the service has or can load; an admin key is needed."""
    asked = await read_admin(exchange, IndexRequest)
    control = exchange.service.control
    entries = [
        {
            "name": own.name,
            "version": own.version,
            "state": STATES[own.state],
            "reason": own.reason or "",
        }
        for own in versions(control, await control.refresh())
    ]
    return JSONResponse([one for one in entries if one["state"] == "READY" or not asked.ready])


@_post(f"/models/{MODEL_PARAMETER}/load", openapi_extra=documented_body(LoadRequest))
async def load(exchange: ApiExchange, model: str) -> Response:
    """Load a model, or swap its version; an admin key is needed."""
    wanted = (await read_admin(exchange, LoadRequest)).parameters
    await exchange.service.control.load(Target(model, wanted.version))
    return Response()


@_post(f"/models/{MODEL_PARAMETER}/unload", openapi_extra=documented_body(UnloadRequest))
async def unload(exchange: ApiExchange, model: str) -> Response:
    """Unload a model, or one version of it; an admin key is needed."""
    wanted = (await read_admin(exchange, UnloadRequest)).parameters
    exchange.service.control.unload(Target(model, wanted.version))
    return Response()
