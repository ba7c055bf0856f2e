"""Errors as clients of the Open Inference Protocol read them."""

from __future__ import annotations

from typing import Any

import orjson
from pydantic import BaseModel
from starlette.responses import Response

from service.api.wire.problems import error_reply
from service.errors import ServiceError

STATUSES = {422: 400, 429: 503}
"""Where Triton's HTTP front end has a status of its own: that of TRITONSERVER_ERROR_INVALID_ARG for
all that is wrong in a request, of UNAVAILABLE for a queue that is full."""


class KServeError(BaseModel):
    """An error."""

    error: str


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": KServeError, "description": description}
    for status, description in {
        400: "Not a request that can be answered, or not ready",
        401: "No key, or a wrong one",
        404: "Of several models none has the name, or there is no such version",
        413: "Body or predicted reply too large",
        415: "Wrong content type or encoding",
        500: "The engine failed",
        501: "The engine asked for is not installed, or the model's graph does not give it",
        503: "Overloaded, or the engine is down",
        504: "The engine did not answer in time",
    }.items()
}
"""The error replies of a route, for the OpenAPI document."""


def error_response(error: ServiceError, _: str) -> Response:
    """An error as its reply: what went wrong in words."""
    response = error_reply(error, orjson.dumps({"error": error.detail}), "application/json")
    response.status_code = STATUSES.get(error.status, error.status)
    return response
