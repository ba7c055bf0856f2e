"""Errors as the clients of Jina read them, and those of Cohere's first version."""

from __future__ import annotations

from typing import Any

import orjson
from pydantic import BaseModel
from starlette.responses import Response

from service.api.wire.problems import PROBLEMS, error_reply
from service.errors import NoTaskHead, ServiceError

_BAD_REQUEST = 400


class ErrorResponse(BaseModel):
    """An error in words: Jina's `detail`, Cohere's `message`."""

    detail: str
    message: str


def error_response(error: ServiceError, _: str) -> Response:
    """An error as its reply; neither project has a status for a model that cannot answer."""
    body = {"detail": error.detail, "message": error.detail}
    response = error_reply(error, orjson.dumps(body), "application/json")
    if error.status == NoTaskHead.status:
        response.status_code = _BAD_REQUEST
    return response


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": problem["description"], "model": ErrorResponse}
    for status, problem in PROBLEMS.items()
}
"""The error replies of a route, for the OpenAPI document."""
