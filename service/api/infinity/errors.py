"""Errors in Infinity's format."""

from __future__ import annotations

import orjson
from pydantic import BaseModel
from starlette.responses import Response

from service.api.wire.problems import error_reply, problems_in_form
from service.errors import NoTaskHead, ServiceError, Unprocessable

_BAD_REQUEST = 400
_STATUSES = {404: _BAD_REQUEST, NoTaskHead.status: _BAD_REQUEST}
"""Native status → Infinity's status, of unknown models and models that cannot answer."""


class ErrorObject(BaseModel):
    """Message and status of an error, nested as in OpenAI's format."""

    message: str
    type: str | None = None
    param: str | None = None
    code: int


class ErrorResponse(BaseModel):
    """Error, with FastAPI's `detail` if the body does not fit the schema, as in Infinity."""

    error: ErrorObject
    detail: list[dict[str, object]] | None = None


def error_response(error: ServiceError, _: str) -> Response:
    """Return the reply of an error."""
    status = _STATUSES.get(error.status, error.status)
    nested = {"message": error.detail, "type": None, "param": None, "code": status}
    body: dict[str, object] = {"error": nested}
    if isinstance(error, Unprocessable):
        body["detail"] = [{"loc": ["body"], "msg": error.detail, "type": "value_error"}]
    response = error_reply(error, orjson.dumps(body), "application/json")
    response.status_code = status
    return response


ERRORS = problems_in_form(ErrorResponse, without=_STATUSES)
"""Error replies of a route, for the OpenAPI document."""
