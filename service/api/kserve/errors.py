"""Errors in the format of the Open Inference Protocol."""

from __future__ import annotations

import orjson
from pydantic import BaseModel
from starlette.responses import Response

from service.api.wire.replies import Responses, error_reply, problems_in_form
from service.errors import ServiceError

STATUSES = {422: 400, 429: 503}
"""Native status → status of Triton's HTTP front end: of TRITONSERVER_ERROR_INVALID_ARG for invalid
requests, of UNAVAILABLE for a full queue."""


class KServeError(BaseModel):
    """Error message."""

    error: str


ERRORS: Responses = problems_in_form(KServeError, without=STATUSES)
for _status, _description in {
    400: "Invalid request, or not ready",
    404: "Unknown model or version",
    503: "Overloaded, or the engine is down",
}.items():
    ERRORS[_status]["description"] = _description
"""Error replies of a route, for the OpenAPI document."""


def error_response(error: ServiceError, _: str) -> Response:
    """Return the reply of an error: its message."""
    response = error_reply(error, orjson.dumps({"error": error.detail}), "application/json")
    response.status_code = STATUSES.get(error.status, error.status)
    return response
