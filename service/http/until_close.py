"""Replies to HTTP/1.0, which has neither chunks nor interim replies.

A transfer coding is forbidden there (RFC 9112, 6.1): a body without a length ends with the
connection.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def until_close(app: ASGIApp, cycle: RequestResponseCycle, cut_off: Callable[[], None]) -> ASGIApp:
    """Return an application whose replies without a length end with the connection.

    Args:
        app: the application.
        cycle: uvicorn's state of the reply. It sends no interim 100 (RFC 9110, 10.1.1).
        cut_off: resets the connection. A client would take its end for the end of the body.

    """
    cycle.waiting_for_100_continue = False

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        unsized = False

        async def send_unchunked(message: Message) -> None:
            nonlocal unsized
            if message["type"] == "http.response.start":
                unsized = all(name.lower() != b"content-length" for name, _ in message["headers"])
                if unsized:
                    cycle.chunked_encoding = False
            elif unsized:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        try:
            await app(scope, receive, send_unchunked)
        except BaseException:
            if unsized and not cycle.response_complete:
                cut_off()
            raise

    return answer
