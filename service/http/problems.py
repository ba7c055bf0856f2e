"""Errors as replies: `application/problem+json`, small, and without the caller's data."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from http import HTTPStatus

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from service.errors import ServiceError, Unauthorized, Unprocessable, problem

CHALLENGES = ('Bearer realm="headscope"', 'Basic realm="headscope", charset="UTF-8"')
"""How a key may be sent: by programs, or as the password that a browser asks for. A header each, as
Chromium reads the first of a header only."""
MAX_ERRORS = 10
MAX_DETAIL_CHARACTERS = 1000
_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}|[0-9]{1,9}")


def new_request_id() -> str:
    """The id of a request that did not bring one."""
    return f"{random.getrandbits(128):032x}"


def problem_response(error: ServiceError, request_id: str) -> Response:
    """An error as its reply."""
    headers = {}
    if error.retry_after_seconds is not None:
        headers["retry-after"] = str(error.retry_after_seconds)
    response = Response(
        orjson.dumps(problem(error, request_id)),
        error.status,
        headers,
        media_type="application/problem+json",
    )
    if error.status == Unauthorized.status:
        for challenge in CHALLENGES:
            response.headers.append("www-authenticate", challenge)
    return response


def install(app: FastAPI) -> None:
    """Answer every error of the application as a problem."""
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)


def _request_id(request: Request) -> str:
    return str(request.state.request_id)


async def _service_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)  # noqa: S101 - registered for it
    return problem_response(error, _request_id(request))


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for it
    found = error.errors()
    described = [f"{_where(item['loc'][1:])}: {item['msg']}" for item in found[:MAX_ERRORS]]
    detail = "; ".join(described)[:MAX_DETAIL_CHARACTERS]
    return problem_response(Unprocessable(detail), _request_id(request))


def _where(location: Sequence[str | int]) -> str:
    """The field's path; the name of an unknown field is the caller's, and told only if tame."""
    parts = [str(part) for part in location]
    return ".".join(part if _FIELD_NAME.fullmatch(part) else "?" for part in parts) or "body"


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
    code = error.status_code
    phrase = HTTPStatus(code).phrase

    class _Http(ServiceError):
        status = code
        title = phrase
        slug = phrase.lower().replace(" ", "-")
        error_type = "Validation"

    response = problem_response(_Http(phrase), _request_id(request))
    response.headers.update(error.headers or {})
    return response
