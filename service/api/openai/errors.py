"""Errors as OpenAI's clients read them."""

from __future__ import annotations

import orjson
from starlette.responses import Response

from service.api.problems import error_reply
from service.errors import ServiceError


def error_response(error: ServiceError, _: str) -> Response:
    """An error as its reply: what went wrong in words, and its kind."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    code = error.slug.replace("-", "_")
    body = {"error": {"message": error.detail, "type": kind, "param": None, "code": code}}
    return error_reply(error, orjson.dumps(body), "application/json")
