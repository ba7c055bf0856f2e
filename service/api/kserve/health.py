"""`GET /v2` and `/v2/health/…`: what the service is, and whether it answers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from service.api.kserve.errors import ERRORS
from service.api.wire.route import service_of
from service.errors import EngineUnavailable, ServiceError
from service.system.distribution import version

EXTENSIONS = ("binary_tensor_data",)
"""Of the protocol, under Triton's names."""

router = APIRouter(prefix="/v2", tags=["kserve"])


class NotReady(ServiceError):
    """The service or a model is not ready; the protocol asks for a status of 400 … 499."""

    status, title, slug = 400, "Not ready", "not-ready"


class ServerMetadata(BaseModel):
    """The service."""

    name: str
    version: str
    extensions: list[str]


@router.get("")
async def server() -> ServerMetadata:
    """Name, version and extensions of the protocol."""
    return ServerMetadata(name="headscope", version=version(), extensions=[*EXTENSIONS])


@router.get("/health/live", response_class=Response)
@router.head("/health/live", include_in_schema=False)
async def live() -> Response:
    """The process answers."""
    return Response()


@router.get("/health/ready", response_class=Response, responses={400: ERRORS[400]})
@router.head("/health/ready", include_in_schema=False)
async def ready(request: Request) -> Response:
    """Every model's real path works in every worker."""
    with telling_not_ready():
        await service_of(request).readiness.check()
    return Response()


@contextlib.contextmanager
def telling_not_ready() -> Iterator[None]:
    """What is unavailable inside of it is told as the protocol tells it.

    Raises:
        NotReady: in place of `EngineUnavailable`.

    """
    try:
        yield
    except EngineUnavailable as error:
        raise NotReady(error.detail) from error
