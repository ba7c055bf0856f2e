"""Fields and errors shared by requests and replies in Infinity's format."""

from __future__ import annotations

import time
import uuid
from typing import Annotated, ClassVar

import orjson
from pydantic import BaseModel, BeforeValidator, Field, StringConstraints, field_validator
from pydantic_core import PydanticKnownError
from starlette.responses import Response

from service.api.native.texts import LenientRequest
from service.api.wire.problems import error_reply, problems_in_form
from service.api.wire.reply_headers import WarnedReply, warning_field
from service.errors import NoTaskHead, ServiceError, Unprocessable
from service.exchange import ErrorForm
from service.inference.timings import Timings

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


MAX_CHARACTERS = 8192 * 15
"""Maximum characters of a text as it is sent, before it is stripped and truncated."""
MAX_TEXTS = 2048
NO_MODEL = "default/not-specified"
"""Model name that Infinity's clients send by default."""


def _bounded(value: object) -> object:
    """Reject a text that is too long as it was sent; pydantic counts after it strips."""
    if isinstance(value, str) and len(value) > MAX_CHARACTERS:
        raise PydanticKnownError("string_too_long", {"max_length": MAX_CHARACTERS})
    return value


Text = Annotated[
    str,
    StringConstraints(max_length=MAX_CHARACTERS, strip_whitespace=True),
    BeforeValidator(_bounded),
]
Texts = Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)]


class InfinityRequest(LenientRequest):
    """Fields of every request."""

    error_form: ClassVar[ErrorForm | None] = error_response

    @field_validator("model")
    @classmethod
    def _named(cls, name: str | None) -> str | None:
        return None if name == NO_MODEL else name


class Usage(BaseModel):
    """Token counts of a request."""

    prompt_tokens: int
    total_tokens: int


class InfinityReply(WarnedReply):
    """Fields of every reply beside its results."""

    model: str
    usage: Usage
    id: str
    created: int


def envelope(kind: str, model: str, timings: Timings) -> dict[str, object]:
    """Return the fields of every reply beside its results."""
    tokens = timings.tokens
    return {
        "object": kind,
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "id": f"infinity-{uuid.uuid4()}",
        "created": int(time.time()),
        **warning_field(timings.warnings),
    }
