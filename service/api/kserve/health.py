"""`GET /v2` and `/v2/health/…`: server metadata, liveness and readiness."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from service.api.kserve.errors import ERRORS
from service.api.wire.route import ApiExchange
from service.errors import EngineUnavailable, ServiceError
from service.system.distribution import version

EXTENSIONS = ("binary_tensor_data", "model_repository")
"""Supported extensions of the protocol, by Triton's names."""

router = APIRouter(prefix="/v2", tags=["kserve"])


class NotReady(ServiceError):
    """Error of a service or model that is not ready; the protocol requires 400 … 499."""

    status, title, slug = 400, "Not ready", "not-ready"


class ServerMetadata(BaseModel):
    """Metadata of the service."""

    name: str
    version: str
    extensions: list[str]


@router.get("")
async def server() -> ServerMetadata:
    """Return the service's name and version, and the supported protocol extensions."""
    return ServerMetadata(name="headscope", version=version(), extensions=[*EXTENSIONS])


@router.get("/health/live", response_class=Response)
@router.head("/health/live", include_in_schema=False)
async def live() -> Response:
    """Return 200 while the process answers."""
    return Response()


@router.get("/health/ready", response_class=Response, responses={400: ERRORS[400]})
@router.head("/health/ready", include_in_schema=False)
async def ready(exchange: ApiExchange) -> Response:
    """Return 200 if every model computes a real request in every worker."""
    with not_ready_errors():
        await exchange.service.readiness.check()
    return Response()


@contextlib.contextmanager
def not_ready_errors() -> Iterator[None]:
    """Convert `EngineUnavailable` to the protocol's error."""
    try:
        yield
    except EngineUnavailable as error:
        raise NotReady(error.detail) from error
