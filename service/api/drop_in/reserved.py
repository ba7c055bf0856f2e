"""Replies whose bytes are held from before they are computed until they are sent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import orjson
from fastapi import Request
from starlette.responses import Response

from service.api.native.texts import check_size
from service.api.wire.media import JSON, Part
from service.api.wire.route import PartsResponse, Reply, service_of
from service.inference.timings import Timings

CHARACTER_BYTES = 6
"""Most bytes of a character in JSON."""
INLINE_BYTES = 2**18
"""A reply up to this size is written on the event loop; a larger one in a thread."""


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
    request.state.predicted_bytes = size
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

    def write() -> list[Part]:
        return [orjson.dumps(content(), option=orjson.OPT_SERIALIZE_NUMPY)]

    return await respond_parts(held, size, write, timings)


async def respond_parts(
    held: contextlib.ExitStack, size: int, write: Callable[[], list[Part]], timings: Timings
) -> Response:
    """A JSON reply in parts; see `respond`."""
    if size <= INLINE_BYTES:
        body: list[Part] = [b"".join(write())]
    else:
        body = await asyncio.to_thread(write)
    return PartsResponse(Reply(body, JSON, timings, release=held.pop_all().close))
