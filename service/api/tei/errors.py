"""Errors in the format of text-embeddings-inference."""

from __future__ import annotations

from typing import Literal

import orjson
from pydantic import BaseModel
from starlette.responses import Response

from service.api.wire.problems import PROBLEMS, error_reply, problems_in_form
from service.errors import NoTaskHead, ServiceError, Unauthorized


class ErrorResponse(BaseModel):
    """Message and kind of an error."""

    error: str
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]


def error_response(error: ServiceError, _: str) -> Response:
    """Return the reply of an error; the body is empty if the API key is wrong, as in TEI."""
    body = {"error": error.detail, "error_type": error.error_type}
    content = b"" if error.status == Unauthorized.status else orjson.dumps(body)
    return error_reply(error, content, "application/json")


ERRORS = problems_in_form(ErrorResponse, without={Unauthorized.status}) | {
    NoTaskHead.status: {"description": "The model has no such task head", "model": ErrorResponse},
    Unauthorized.status: {"description": PROBLEMS[Unauthorized.status]["description"]},
}
"""Error replies of a route, for the OpenAPI document."""
