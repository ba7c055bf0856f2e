"""The fields that requests in text-embeddings-inference's forms share, and their replies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Literal

import orjson
from fastapi import Request
from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from service.api.media import JSON
from service.api.native.texts import MAX_FIELDS, check_size
from service.api.route import ModelRequest, PartsResponse, Reply, service_of
from service.inference.excerpt import Direction
from service.inference.timings import Timings
from service.inference.tokenizer import Options

CHARACTER_BYTES = 6
"""Most bytes of a character in JSON."""
INLINE_BYTES = 2**18
"""A reply up to this size is written on the event loop; a larger one in a thread."""


class TeiRequest(ModelRequest):
    """What every request has; unknown fields are ignored, as TEI does."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    truncate: bool | None = Field(
        None, description="Cut a text that is too long, instead of refusing it."
    )
    truncation_direction: Literal["Left", "Right", "left", "right"] = Field(
        "Right", description="Which side is cut."
    )

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and len(fields) > MAX_FIELDS:
            raise PydanticCustomError("fields", "there are too many fields")
        return fields

    def options(self, prompt_name: str | None = None) -> Options:
        """How the texts are tokenised."""
        direction: Direction = "left" if self.truncation_direction in ("Left", "left") else "right"
        return Options(bool(self.truncate), direction, prompt_name)


def reserve(request: Request, size: int) -> contextlib.ExitStack:
    """Context that holds the bytes of a reply from before it is computed until `respond` sends it.

    Raises:
        ReplyTooLarge: the reply would exceed the limit of one.
        Overloaded: other replies in flight leave too little.

    """
    state = service_of(request)
    check_size(size, state.settings.max_response_bytes, "send fewer texts", binary=True)
    held = contextlib.ExitStack()
    held.enter_context(state.replies.hold(size))
    return held


async def respond(
    held: contextlib.ExitStack, size: int, content: Callable[[], Any], timings: Timings
) -> Response:
    """A JSON reply.

    Args:
        held: bytes of the reply, which it gives back once it is sent; see `reserve`.
        size: bytes predicted of the reply.
        content: of the reply; called in a thread where it is large.
        timings: of the request.

    """

    def write() -> bytes:
        return orjson.dumps(content(), option=orjson.OPT_SERIALIZE_NUMPY)

    body = write() if size <= INLINE_BYTES else await asyncio.to_thread(write)
    return PartsResponse(Reply([body], JSON, timings, release=held.pop_all().close))
