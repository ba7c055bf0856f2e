"""Errors as OpenAI's clients read them."""

from __future__ import annotations

import re
from typing import Any

import orjson
from pydantic import BaseModel
from starlette.responses import Response

from service.api.wire.problems import PROBLEMS, error_reply
from service.errors import (
    NoEmbeddings,
    Overloaded,
    ServiceError,
    Unauthorized,
    UnknownModel,
    Unprocessable,
)

INVALID = 400
"""What OpenAI answers to a request that asks for the impossible, where other dialects have 422."""
CODES: dict[int, str] = {
    Unauthorized.status: "invalid_api_key",
    UnknownModel.status: "model_not_found",
    Overloaded.status: "rate_limit_exceeded",
}
"""OpenAI's own codes; the error's own name where it has none."""
_PARAM = re.compile(r"(?!body)([a-z_]+)(?=[:.[])")
"""The field that an error is about: refusals of a field begin with its name."""


class OpenAIErrorDetail(BaseModel):
    """An error: in words, its kind, and the field that it is about."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(BaseModel):
    """An error in OpenAI's form."""

    error: OpenAIErrorDetail


def error_response(error: ServiceError, _: str) -> Response:
    """An error as its reply."""
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


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": problem["description"], "model": OpenAIError}
    for status, problem in PROBLEMS.items()
    if status != Unprocessable.status
} | {
    INVALID: {"description": "Not JSON, or an input that does not fit", "model": OpenAIError},
    NoEmbeddings.status: {"description": "The model gives no vectors", "model": OpenAIError},
    "default": {"description": "Any other error", "model": OpenAIError},
}
"""The error replies of a route, for the OpenAPI document."""
