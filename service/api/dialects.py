"""Registry of the dialects, and error handlers that answer in the format of the route's dialect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from service.api import (
    cohere,
    dashboard,
    documentation,
    infinity,
    jina,
    kserve,
    native,
    openai,
    operations,
    shared_paths,
    tei,
    vllm,
)
from service.api.cohere.replies import error_response as cohere_error
from service.api.infinity.fields import error_response as infinity_error
from service.api.kserve.errors import error_response as kserve_error
from service.api.native import verify
from service.api.openai.models import error_response as openai_error
from service.api.tei.texts import error_response as tei_error
from service.api.vllm.fields import error_response as vllm_error
from service.api.wire.problems import describe_errors, problem_response
from service.api.wire.route import DirectRoutes, JsonRoute, answered_by, context_of, service_of
from service.errors import ServiceError, Unprocessable
from service.request_context import ErrorForm
from service.settings import Settings


@dataclass(frozen=True)
class Dialect:
    """Set of routes and the format of their errors."""

    routers: Sequence[APIRouter]
    error_response: ErrorForm


NATIVE = Dialect(native.ROUTERS, problem_response)
DIALECTS = (
    NATIVE,
    Dialect([*tei.ROUTERS, shared_paths.router], tei_error),
    Dialect(openai.ROUTERS, openai_error),
    Dialect(infinity.ROUTERS, infinity_error),
    Dialect(cohere.ROUTERS, cohere_error),
    Dialect(jina.ROUTERS, jina.error_response),
    Dialect(vllm.ROUTERS, vllm_error),
    Dialect(kserve.ROUTERS, kserve_error),
    Dialect([operations.router, documentation.router, dashboard.router], problem_response),
)


def error_response(path: str, error: ServiceError, request_id: str) -> Response:
    """Return an error in the format of the dialect that owns the path; native for unknown paths.

    Where several dialects share a path, the dialect with a GET route wins, since people read its
    errors in a browser.
    """
    owners = _owners(path)
    asked = [dialect for route, dialect in owners if "GET" in (route.methods or ())]
    dialect = next(iter([*asked, *(dialect for _, dialect in owners)]), NATIVE)
    return dialect.error_response(error, request_id)


def _owners(path: str) -> list[tuple[Route, Dialect]]:
    """Return the routes of a path for every method, each with its dialect."""
    return [
        (route, dialect)
        for route, dialect in _routes()
        if isinstance(route, Route) and route.path_regex.match(path)
    ]


def _routes() -> Iterator[tuple[BaseRoute, Dialect]]:
    for dialect in DIALECTS:
        for router in dialect.routers:
            for route in router.routes:
                yield route, dialect


def install(app: FastAPI, settings: Settings) -> None:
    """Add the routes and the error handlers of every dialect."""
    for dialect in DIALECTS:
        for router in dialect.routers:
            if settings.verify_route or router is not verify.router:
                # include_router would match a path once for each router, then again for the route
                app.router.routes.extend(router.routes)
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_middleware(DirectRoutes, routes=app.router.routes, handlers=app.exception_handlers)


def _reply(request: Request, error: ServiceError) -> Response:
    service_of(request).metrics.http.refused(request.scope, error)
    context, models = context_of(request), service_of(request).models
    request_id = context.request_id
    of_model = isinstance(request.scope.get("route"), JsonRoute)
    unchosen = of_model and context.fingerprint is None and not models.several
    if unchosen and (only := models.loaded_default):  # refused before the only model was chosen
        answered_by(request, only)
    if context.error_form is not None:
        return context.error_form(error, request_id)
    for route, dialect in _routes():
        if route is request.scope.get("route"):
            return dialect.error_response(error, request_id)
    return error_response(request.scope["path"], error, request_id)


async def _service_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)  # noqa: S101 - registered for it
    return _reply(request, error)


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for it
    return _reply(request, Unprocessable(describe_errors(error.errors())))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
    code = error.status_code
    phrase = HTTPStatus(code).phrase

    class _Http(ServiceError):
        status = code
        title = phrase
        slug = phrase.lower().replace(" ", "-")
        error_type = "Validation"

    path, failure = request.scope["path"], _Http(phrase)
    service_of(request).metrics.http.refused(request.scope, failure)
    response = error_response(path, failure, context_of(request).request_id)
    response.headers.update(error.headers or {})
    if code == HTTPStatus.METHOD_NOT_ALLOWED:  # Starlette lists the methods of one route only
        methods = {method for route, _ in _owners(path) for method in route.methods or ()}
        if methods:
            response.headers["allow"] = ", ".join(sorted(methods))
    return response
