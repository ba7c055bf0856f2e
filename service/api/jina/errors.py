"""Errors in the formats of Jina and of version 1 of Cohere's API."""

from __future__ import annotations

import orjson
from pydantic import BaseModel
from starlette.responses import Response

from service.api.wire.problems import error_reply, problems_in_form
from service.errors import NoTaskHead, ServiceError

_BAD_REQUEST = 400


class ErrorResponse(BaseModel):
    """Error message, as Jina's `detail` and Cohere's `message`."""

    detail: str
    message: str


def error_response(error: ServiceError, _: str) -> Response:
    """Return the reply of an error; a model that cannot answer has status 400 in both APIs."""
    body = {"detail": error.detail, "message": error.detail}
    response = error_reply(error, orjson.dumps(body), "application/json")
    if error.status == NoTaskHead.status:
        response.status_code = _BAD_REQUEST
    return response


ERRORS = problems_in_form(ErrorResponse)
"""Error replies of a route, for the OpenAPI document."""
