"""Errors in Cohere's format."""

from __future__ import annotations

import orjson
from pydantic import BaseModel
from starlette.responses import Response

from service.api.wire.problems import error_reply, problems_in_form
from service.errors import NoTaskHead, ServiceError, Unprocessable

_BAD_REQUEST = 400
_STATUSES = {Unprocessable.status: _BAD_REQUEST, NoTaskHead.status: _BAD_REQUEST}
"""Native status → Cohere's status, of requests that cannot be satisfied."""


class ErrorResponse(BaseModel):
    """Error message."""

    message: str


def error_response(error: ServiceError, _: str) -> Response:
    """Return the reply of an error."""
    response = error_reply(error, orjson.dumps({"message": error.detail}), "application/json")
    response.status_code = _STATUSES.get(error.status, error.status)
    return response


ERRORS = problems_in_form(ErrorResponse, without=_STATUSES)
"""Error replies of a route, for the OpenAPI document."""
