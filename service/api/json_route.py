"""How a route reads its body: strict JSON into its model, and nothing in between."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, get_type_hints

import orjson
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from service.errors import InvalidRequest, UnsupportedMediaType


class JsonRoute(APIRoute):
    """A route whose endpoint takes `body`, a model, and `request`, and answers a `Response`.

    FastAPI documents it; its own way from body to endpoint, which solves dependencies that these
    routes do not have, costs as much as all else in a small request.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """From a request to the endpoint's reply."""
        model: type[BaseModel] = get_type_hints(self.endpoint)["body"]

        async def handle(request: Request) -> Response:
            content = read_json(await request.body(), request)
            try:
                body = model.model_validate(content)
            except ValidationError as error:
                found = error.errors(include_url=False, include_context=False, include_input=False)
                raise RequestValidationError(
                    [{**item, "loc": ("body", *item["loc"])} for item in found]
                ) from None
            response: Response = await self.endpoint(body=body, request=request)
            return response

        return handle


def read_json(body: bytes, request: Request) -> Any:
    """Parse a JSON body with orjson, which refuses NaN, lone surrogates and broken UTF-8.

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
