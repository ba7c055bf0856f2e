"""Errors in vLLM's format."""

from __future__ import annotations

from http import HTTPStatus

import orjson
from pydantic import BaseModel
from starlette.responses import Response

from service.api.wire.problems import error_reply, problems_in_form
from service.api.wire.reply_headers import Responses
from service.errors import NoTaskHead, ServiceError, Unprocessable

_BAD_REQUEST = 400
_STATUSES = {Unprocessable.status: _BAD_REQUEST, NoTaskHead.status: _BAD_REQUEST}
"""Native status → vLLM's status, of requests that cannot be satisfied."""
_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    500: "InternalServerError",
    501: "NotImplementedError",
}


class ErrorObject(BaseModel):
    """Message, type and status of an error."""

    message: str
    type: str
    param: str | None = None
    code: int


class ErrorResponse(BaseModel):
    """Error."""

    error: ErrorObject


def error_response(error: ServiceError, _: str) -> Response:
    """Return the reply of an error; its type is the status's phrase if vLLM has no name for it."""
    status = _STATUSES.get(error.status, error.status)
    kind = _TYPES.get(status) or HTTPStatus(status).phrase
    nested = {"message": error.detail, "type": kind, "param": None, "code": status}
    response = error_reply(error, orjson.dumps({"error": nested}), "application/json")
    response.status_code = status
    return response


ERRORS = problems_in_form(ErrorResponse, without=_STATUSES)
"""Error replies of a route, for the OpenAPI document."""


def with_vllm_errors(errors: Responses) -> Responses:
    """Return the error replies of a route that also accepts requests in vLLM's format.

    Args:
        errors: error replies of the route's other format, each with its `model`.

    """
    return {
        status: {**reply, "model": reply["model"] | ErrorResponse}
        for status, reply in errors.items()
    }
