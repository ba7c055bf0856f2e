"""Replies whose predicted bytes are reserved before they are computed and freed once sent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from fastapi import Request
from starlette.responses import Response

from service.api.native.texts import check_size
from service.api.wire.json_pieces import as_json, list_pieces
from service.api.wire.media import JSON, Unwritten
from service.api.wire.route import PartsResponse, Reply, context_of, service_of
from service.inference.timings import Timings

CHARACTER_BYTES = 6
"""Maximum bytes of a character in JSON."""
INLINE_BYTES = 2**18
"""The content of a reply up to this size is made on the event loop, of a larger one in a thread."""


def reserve(request: Request, size: int) -> contextlib.ExitStack:
    """Reserve the bytes of a reply before it is computed; `respond` frees them once it is sent.

    Raises:
        ReplyTooLarge: the reply would exceed the limit of a reply.
        Overloaded: replies in flight leave too few bytes.

    """
    state = service_of(request)
    check_size(size, state.settings.max_response_bytes, "send fewer texts", binary=True)
    held = contextlib.ExitStack()
    held.enter_context(state.replies.hold(size))
    context_of(request).predicted_bytes = size
    return held


async def respond(
    held: contextlib.ExitStack, size: int, content: Callable[[], Any], timings: Timings
) -> Response:
    """Return a JSON reply.

    Args:
        held: bytes of the reply, which it gives back once it is sent; see `reserve`.
        size: bytes predicted of the reply.
        content: of the reply; called in a thread where it is large. Items of a list are written
            one by one.
        timings: of the request.

    """
    value = content() if size <= INLINE_BYTES else await asyncio.to_thread(content)
    pieces = list_pieces(value, 1) if isinstance(value, list) else iter([as_json(value)])
    return respond_pieces(held, pieces, timings)


def respond_pieces(held: contextlib.ExitStack, pieces: Unwritten, timings: Timings) -> Response:
    """Return a JSON reply in pieces; see `respond`."""
    return PartsResponse(Reply([pieces], JSON, timings, release=held.pop_all().close))
