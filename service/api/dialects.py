"""Registry of the dialects, the paths that several share, and errors in a dialect's format.

The fields of a body identify its dialect among those of its path; vLLM's requests have a field that
only vLLM has, such as `truncate_prompt_tokens`. Errors use the format of the body's dialect once it
is known, before that the format of the path's first dialect.
"""

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
    kserve,
    native,
    openai,
    operations,
    tei,
    vllm,
)
from service.api.drop_in.embedding import errors_of_both
from service.api.kserve.models import error_response as kserve_error
from service.api.native import verify
from service.api.tei.scores import RANK, RerankRequest
from service.api.tei.vectors import ERRORS as TEI_ERRORS
from service.api.tei.vectors import error_response as tei_error
from service.api.wire.replies import describe_errors, problem_response, replies
from service.api.wire.route import ApiExchange, JsonRoute
from service.api.wire.schemas import any_of
from service.errors import ServiceError, Unprocessable
from service.exchange import NO_FINGERPRINT, ErrorForm
from service.settings import Settings

tei_router = APIRouter(route_class=JsonRoute, tags=["tasks"])
cohere_router = APIRouter(route_class=JsonRoute, tags=["cohere"])
jina_router = APIRouter(route_class=JsonRoute, tags=["jina"])


@tei_router.post(
    "/rerank",
    responses=replies(
        any_of([RANK], infinity.RERANK_REPLY, vllm.RERANK_REPLY),
        errors_of_both(TEI_ERRORS, infinity.ERRORS),
    ),
)
async def rerank(
    body: RerankRequest | vllm.VllmRerankRequest | infinity.InfinityRerankRequest,
    exchange: ApiExchange,
) -> Response:
    """Rank texts by relevance to a query: `texts` in TEI's format, `documents` in Infinity's.

    vLLM's format has `documents` and a field that only vLLM has, such as `truncate_prompt_tokens`.
    """
    return await body.answer(exchange)


@cohere_router.post(
    "/v2/rerank",
    responses=replies(
        any_of(cohere.RERANK_REPLY, vllm.RERANK_REPLY), errors_of_both(cohere.ERRORS, vllm.ERRORS)
    ),
)
async def rerank_v2(
    body: cohere.CohereRankRequest | vllm.VllmRerankRequest, exchange: ApiExchange
) -> Response:
    """Rank the documents, the most relevant to the query first; long documents are cut.

    A body with a field that only vLLM has is answered in vLLM's format.
    """
    return await body.answer(exchange)


@jina_router.post(
    "/v1/rerank",
    responses=replies(
        any_of(cohere.JINA_RERANK_REPLY, vllm.RERANK_REPLY),
        errors_of_both(cohere.JINA_ERRORS, vllm.ERRORS),
    ),
)
async def rerank_v1(
    body: cohere.JinaRerankRequest | vllm.VllmRerankRequest, exchange: ApiExchange
) -> Response:
    """Rank the documents, the most relevant to the query first; long documents are cut.

    A body with a field that only vLLM has is answered in its format.
    """
    return await body.answer(exchange)


@dataclass(frozen=True)
class Dialect:
    """Set of routes and the format of their errors."""

    routers: Sequence[APIRouter]
    error_response: ErrorForm


NATIVE = Dialect(native.ROUTERS, problem_response)
DIALECTS = (
    NATIVE,
    Dialect([*tei.ROUTERS, tei_router], tei_error),
    Dialect(openai.ROUTERS, openai.error_response),
    Dialect(infinity.ROUTERS, infinity.error_response),
    Dialect([*cohere.ROUTERS, cohere_router], cohere.error_response),
    Dialect([jina_router], cohere.jina_error_response),
    Dialect(vllm.ROUTERS, vllm.error_response),
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
    for kind in (ServiceError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _handle)


async def _handle(request: Request, error: Exception) -> Response:
    """Answer an error of a route that Starlette has called."""
    reply = error_reply(request.scope["exchange"], error)
    assert reply is not None  # noqa: S101 - registered for these errors
    return reply


def error_reply(exchange: ApiExchange, error: Exception) -> Response | None:
    """Return the reply of an error in its route's dialect, and count it; None if unexpected."""
    if isinstance(error, HTTPException):
        return _http_error(exchange, error)
    if isinstance(error, RequestValidationError):
        errors = [{**item, "loc": item["loc"][1:]} for item in error.errors()]
        error = Unprocessable(describe_errors(errors))  # without "query"
    if not isinstance(error, ServiceError):
        return None
    scope, request_id = exchange.scope, exchange.request_id
    service, route = exchange.service, scope.get("route")
    service.metrics.http.refused(scope, error)
    models = service.models
    unchosen = (
        isinstance(route, JsonRoute)
        and exchange.fingerprint is NO_FINGERPRINT
        and not models.several
    )
    if unchosen and (only := models.loaded_default):  # refused before the only model was chosen
        exchange.bind_model(only)
    if exchange.error_form is not None:
        return exchange.error_form(error, request_id)
    for own, dialect in _routes():
        if own is route:
            return dialect.error_response(error, request_id)
    return error_response(scope["path"], error, request_id)


def _http_error(exchange: ApiExchange, error: HTTPException) -> Response:
    code = error.status_code
    phrase = HTTPStatus(code).phrase

    class _Http(ServiceError, status=code, error_type="Validation"):
        title = phrase

    scope, failure = exchange.scope, _Http(phrase)
    path = scope["path"]
    exchange.service.metrics.http.refused(scope, failure)
    response = error_response(path, failure, exchange.request_id)
    response.headers.update(error.headers or {})
    if code == HTTPStatus.METHOD_NOT_ALLOWED:  # Starlette lists the methods of one route only
        methods = {method for route, _ in _owners(path) for method in route.methods or ()}
        if methods:
            response.headers["allow"] = ", ".join(sorted(methods))
    return response
