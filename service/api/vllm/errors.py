"""Errors as vLLM's clients read them."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import orjson
from pydantic import BaseModel
from starlette.responses import Response

from service.api.wire.problems import PROBLEMS, error_reply
from service.errors import NoTaskHead, ServiceError, Unprocessable

_BAD_REQUEST = 400
_STATUSES = {Unprocessable.status: _BAD_REQUEST, NoTaskHead.status: _BAD_REQUEST}
"""vLLM's status where it is another: of a request that asks for what cannot be."""
_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    500: "InternalServerError",
    501: "NotImplementedError",
}


class ErrorObject(BaseModel):
    """An error in words, by its kind and by its status."""

    message: str
    type: str
    param: str | None = None
    code: int


class ErrorResponse(BaseModel):
    """An error."""

    error: ErrorObject


def error_response(error: ServiceError, _: str) -> Response:
    """An error as its reply; its kind is the status's phrase where vLLM has no name for it."""
    status = _STATUSES.get(error.status, error.status)
    kind = _TYPES.get(status) or HTTPStatus(status).phrase
    nested = {"message": error.detail, "type": kind, "param": None, "code": status}
    response = error_reply(error, orjson.dumps({"error": nested}), "application/json")
    response.status_code = status
    return response


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": problem["description"], "model": ErrorResponse}
    for status, problem in PROBLEMS.items()
    if status not in _STATUSES
}
"""The error replies of a route, for the OpenAPI document."""


def with_vllm_errors(errors: dict[int | str, dict[str, Any]]) -> dict[int | str, dict[str, Any]]:
    """Return the error replies of a route that also takes requests in vLLM's form.

    Args:
        errors: of the route's other form, each with its `model`.

    """
    return {
        status: {**reply, "model": reply["model"] | ErrorResponse}
        for status, reply in errors.items()
    }
