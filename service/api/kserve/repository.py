"""KServe's model repository extension: index, load and unload.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_repository.md
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from service.api.kserve.errors import ERRORS
from service.api.wire.bodies import documented_body
from service.api.wire.media import MODEL_PARAMETER
from service.api.wire.route import ApiExchange, admin_errors, read_admin
from service.artifacts.repository import Target
from service.models.control import State, VersionState, versions

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


class IndexEntry(BaseModel):
    """Version of a model."""

    name: str
    version: str
    state: str
    reason: str = ""


class LoadParameters(BaseModel):
    """Parameters of a load."""

    model_config = ConfigDict(extra="forbid")

    version: str | None = Field(None, min_length=1, max_length=64)


class LoadRequest(BaseModel):
    """Request body of a load."""

    model_config = ConfigDict(extra="forbid")

    parameters: LoadParameters = LoadParameters()


class UnloadParameters(BaseModel):
    """Parameters of an unload."""

    model_config = ConfigDict(extra="forbid")

    version: str | None = Field(None, min_length=1, max_length=64)
    unload_dependents: bool = False


class UnloadRequest(BaseModel):
    """Request body of an unload."""

    model_config = ConfigDict(extra="forbid")

    parameters: UnloadParameters = UnloadParameters()


_RESPONSES = admin_errors(ERRORS)
_post = partial(router.post, response_class=Response, responses=_RESPONSES)
"""Decorator of a route whose reply has no body."""


@router.post("/index", responses=_RESPONSES, openapi_extra=documented_body(IndexRequest))
async def index(exchange: ApiExchange) -> list[IndexEntry]:
    """List all versions that the service has or can load; an admin key is needed."""
    asked = await read_admin(exchange, IndexRequest)
    control = exchange.service.control
    states = versions(control, await control.refresh())
    entries = [_entry(state) for state in states]
    return [entry for entry in entries if entry.state == "READY" or not asked.ready]


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


def _entry(state: VersionState) -> IndexEntry:
    return IndexEntry(
        name=state.name,
        version=state.version,
        state=STATES[state.state],
        reason=state.reason or "",
    )
