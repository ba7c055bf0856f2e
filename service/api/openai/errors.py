"""Errors in OpenAI's format."""

from __future__ import annotations

import re

import orjson
from pydantic import BaseModel
from starlette.responses import Response

from service.api.wire.problems import error_reply, problems_in_form
from service.errors import (
    NoEmbeddings,
    Overloaded,
    ServiceError,
    Unauthorized,
    UnknownModel,
    Unprocessable,
)

INVALID = 400
"""Status of requests that cannot be satisfied, 422 in other dialects."""
CODES: dict[int, str] = {
    Unauthorized.status: "invalid_api_key",
    UnknownModel.status: "model_not_found",
    Overloaded.status: "rate_limit_exceeded",
}
"""Status → OpenAI's error code; other errors use their own name."""
_PARAM = re.compile(r"(?!body)([a-z_]+)(?=[:.[])")
"""Pattern of the field's name at the start of an error message."""


class OpenAIErrorDetail(BaseModel):
    """Message, type and code of an error, and the field that caused it."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(BaseModel):
    """Error in OpenAI's format."""

    error: OpenAIErrorDetail


def error_response(error: ServiceError, _: str) -> Response:
    """Return the reply of an error."""
    named = _PARAM.match(error.detail)
    body = {
        "message": error.detail,
        "type": "invalid_request_error" if error.status < 500 else "server_error",
        "param": "model" if isinstance(error, UnknownModel) else named and named[1],
        "code": CODES.get(error.status, error.slug.replace("-", "_")),
    }
    response = error_reply(error, orjson.dumps({"error": body}), "application/json")
    if error.status == Unprocessable.status:
        response.status_code = INVALID
    return response


ERRORS = problems_in_form(OpenAIError, without={Unprocessable.status}) | {
    INVALID: {"description": "Invalid JSON or invalid input", "model": OpenAIError},
    NoEmbeddings.status: {"description": "The model does not embed texts", "model": OpenAIError},
    "default": {"description": "Any other error", "model": OpenAIError},
}
"""Error replies of a route, for the OpenAPI document."""
