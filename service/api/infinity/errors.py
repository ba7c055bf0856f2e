"""Errors as Infinity's clients read them."""

from __future__ import annotations

from typing import Any

import orjson
from pydantic import BaseModel
from starlette.responses import Response

from service.api.wire.problems import PROBLEMS, error_reply
from service.errors import NoTaskHead, ServiceError, Unprocessable

_BAD_REQUEST = 400
_STATUSES = {404: _BAD_REQUEST, NoTaskHead.status: _BAD_REQUEST}
"""Infinity's status where it is another: of a model that is not there, or cannot answer."""


class ErrorObject(BaseModel):
    """An error in words and by its status, nested as OpenAI's."""

    message: str
    type: str | None = None
    param: str | None = None
    code: int


class ErrorResponse(BaseModel):
    """An error; of a body that does not fit the schema also FastAPI's `detail`, as there."""

    error: ErrorObject
    detail: list[dict[str, Any]] | None = None


def error_response(error: ServiceError, _: str) -> Response:
    """An error as its reply."""
    status = _STATUSES.get(error.status, error.status)
    nested = {"message": error.detail, "type": None, "param": None, "code": status}
    body: dict[str, Any] = {"error": nested}
    if isinstance(error, Unprocessable):
        body["detail"] = [{"loc": ["body"], "msg": error.detail, "type": "value_error"}]
    response = error_reply(error, orjson.dumps(body), "application/json")
    response.status_code = status
    return response


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": problem["description"], "model": ErrorResponse}
    for status, problem in PROBLEMS.items()
    if status not in _STATUSES
}
"""The error replies of a route, for the OpenAPI document."""
