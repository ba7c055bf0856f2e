"""The fields that requests and replies in Infinity's forms share."""

from __future__ import annotations

import time
import uuid
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field, StringConstraints, field_validator

from service.api.infinity.errors import error_response
from service.api.native.texts import LenientRequest
from service.api.wire.notices import NoticedReply, notice_field
from service.api.wire.route import ErrorForm
from service.inference.timings import Timings

MAX_CHARACTERS = 8192 * 15
"""Of a text, before it is cut to what fits the model."""
MAX_TEXTS = 2048
NO_MODEL = "default/not-specified"
"""What Infinity's clients send as the name of no model."""
Text = Annotated[str, StringConstraints(max_length=MAX_CHARACTERS, strip_whitespace=True)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)]


class InfinityRequest(LenientRequest):
    """What every request has."""

    error_form: ClassVar[ErrorForm | None] = error_response

    @field_validator("model")
    @classmethod
    def _named(cls, name: str | None) -> str | None:
        return None if name == NO_MODEL else name


class Usage(BaseModel):
    """Tokens of a request."""

    prompt_tokens: int
    total_tokens: int


class InfinityReply(NoticedReply):
    """Fields that stand beside the results of every reply."""

    model: str
    usage: Usage
    id: str
    created: int


def envelope(kind: str, model: str, timings: Timings) -> dict[str, Any]:
    """Return the fields that stand beside the results of every reply."""
    tokens = timings.tokens
    return {
        "object": kind,
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "id": f"infinity-{uuid.uuid4()}",
        "created": int(time.time()),
        **notice_field(timings.notices),
    }
