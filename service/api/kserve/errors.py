"""Errors in the format of the Open Inference Protocol."""

from __future__ import annotations

import orjson
from pydantic import BaseModel
from starlette.responses import Response

from service.api.wire.replies import Responses, error_reply
from service.errors import ServiceError

STATUSES = {422: 400, 429: 503}
"""Native status → status of Triton's HTTP front end: of TRITONSERVER_ERROR_INVALID_ARG for invalid
requests, of UNAVAILABLE for a full queue."""


class KServeError(BaseModel):
    """Error message."""

    error: str


ERRORS: Responses = {
    status: {"model": KServeError, "description": description}
    for status, description in {
        400: "Invalid request, or not ready",
        401: "API key missing or wrong",
        404: "Unknown model or version",
        408: "The request took too long to send",
        409: "The model has another fingerprint than the request expects",
        413: "Body or predicted reply too large",
        415: "Wrong content type or encoding",
        421: "Unknown host",
        431: "Head too large",
        500: "The engine failed",
        501: "The requested engine is not installed, or the model's graph lacks the output",
        503: "Overloaded, or the engine is down",
        504: "The engine did not answer in time",
    }.items()
}
"""Error replies of a route, for the OpenAPI document."""


def error_response(error: ServiceError, _: str) -> Response:
    """Return the reply of an error: its message."""
    response = error_reply(error, orjson.dumps({"error": error.detail}), "application/json")
    response.status_code = STATUSES.get(error.status, error.status)
    return response
