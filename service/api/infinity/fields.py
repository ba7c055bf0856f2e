"""Fields shared by requests and replies in Infinity's format."""

from __future__ import annotations

import time
import uuid
from typing import Annotated, ClassVar

from pydantic import BaseModel, BeforeValidator, Field, StringConstraints, field_validator
from pydantic_core import PydanticKnownError

from service.api.infinity.errors import error_response
from service.api.native.texts import LenientRequest
from service.api.wire.text_warnings import WarnedReply, warning_field
from service.inference.timings import Timings
from service.request_context import ErrorForm

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
