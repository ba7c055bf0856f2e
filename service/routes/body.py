"""How a route reads its body: strict JSON, checked before validation."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from service.errors import InvalidRequest, UnsupportedMediaType


class JsonRequest(Request):
    """A request whose JSON was read once, strictly."""

    parsed: Any

    async def json(self) -> Any:
        """The body, as `read_json` read it."""
        return self.parsed


class JsonRoute(APIRoute):
    """Reads bodies with orjson, which refuses NaN, lone surrogates and broken UTF-8."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap FastAPI's handler."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            if request.method != "POST":
                return await handler(request)
            strict = JsonRequest(request.scope, request.receive)
            strict.parsed = read_json(await strict.body(), strict)
            return await handler(strict)

        return handle


def read_json(body: bytes, request: Request) -> Any:
    """Parse a JSON body.

    Raises:
        UnsupportedMediaType: it is not said to be JSON, or it is compressed.
        InvalidRequest: it is not JSON.

    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise UnsupportedMediaType("the content type must be application/json")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType("compressed bodies are not taken")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON (at byte {error.pos})") from None
