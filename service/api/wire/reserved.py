"""Replies whose predicted bytes are reserved before they are computed and freed once sent."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

from fastapi import Request

from service.api.wire.json_pieces import as_json, list_pieces
from service.api.wire.media import JSON, SAFETENSORS, Part, Unwritten
from service.api.wire.route import PartsResponse, exchange_of, service_of
from service.errors import ReplyTooLarge
from service.inference.timings import Timings
from service.system.budget import ByteBudget

CHARACTER_BYTES = 6
"""Maximum bytes of a character in JSON."""
INLINE_BYTES = 2**18
"""Maximum bytes of a reply that is made on the event loop; a larger one is made in a thread."""
FEWER_TEXTS = "send fewer texts"


class ReservedReply:
    """Reply whose bytes are reserved for a block, or until its response is sent; see `reserve`."""

    def __init__(self, budget: ByteBudget, size: int, held: int) -> None:
        """Take the bytes."""
        budget.take(held)
        self._began = time.monotonic()
        self._budget = budget
        self._size = size
        self._held = held
        self._sent_later = False

    def __enter__(self) -> ReservedReply:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._sent_later:
            self._release()

    def _release(self) -> None:
        self._budget.give_back(self._held, time.monotonic() - self._began)

    async def json(self, content: Callable[[], object], timings: Timings) -> PartsResponse:
        """Return a JSON response.

        Args:
            content: function that returns the content; called in a thread if the reply is large.
                Items of a list are written one by one.
            timings: timings of the request.

        """
        value = content() if self._size <= INLINE_BYTES else await asyncio.to_thread(content)
        pieces = list_pieces(value) if isinstance(value, list) else iter([as_json(value)])
        return self.response([pieces], JSON, timings)

    def response(
        self, parts: Sequence[Part | Unwritten], media_type: str, timings: Timings
    ) -> PartsResponse:
        """Return a response that frees the reserved bytes once it is sent."""
        self._sent_later = True
        return PartsResponse(parts, media_type, timings, release=self._release)


def reserve(
    request: Request, size: int, *, held: int | None = None, advice: str | None = FEWER_TEXTS
) -> ReservedReply:
    """Reserve the bytes of a reply before it is computed, and record their prediction.

    The bytes are freed at the end of the `with` block, unless a response was made of the reply.

    Args:
        request: HTTP request.
        size: predicted bytes of the reply.
        held: bytes of the reply and its computation in memory; `size` by default.
        advice: how to get a smaller reply, for the error message; None if the size is checked.

    Raises:
        ReplyTooLarge: the reply would exceed the limit of a reply.
        Overloaded: replies in flight leave too few bytes.

    """
    state = service_of(request)
    if advice is not None:
        check_size(size, state.settings.max_response_bytes, advice, binary=True)
    reply = ReservedReply(state.replies, size, size if held is None else held)
    exchange_of(request).predicted_bytes = size
    return reply


@contextlib.contextmanager
def hold(request: Request, size: int) -> Iterator[None]:
    """Hold bytes that a computation needs beside its reply, while the block runs.

    Raises:
        ReplyTooLarge: the bytes exceed the limit of a reply.
        Overloaded: replies in flight leave too few bytes.

    """
    state = service_of(request)
    check_size(size, state.settings.max_response_bytes, FEWER_TEXTS, binary=True)
    with state.replies.hold(size):
        yield


def check_size(size: int, limit: int, less: str, *, binary: bool) -> None:
    """Reject a reply that would be too large, before it is computed.

    Args:
        size: predicted bytes of the reply.
        limit: maximum bytes of a reply.
        less: advice for the error message.
        binary: whether the reply is in the binary format already.

    """
    if size > limit:
        or_binary = "" if binary else f", or for the binary form (Accept: {SAFETENSORS})"
        raise ReplyTooLarge(
            f"the reply would have about {size} bytes, more than {limit} "
            f"(--max-response-bytes): {less}{or_binary}"
        )
