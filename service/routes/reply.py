"""How a route answers: which form was asked for, and the timings in the headers."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.predictor import Reply
from service.schemas import Problem
from service.wire import SAFETENSORS, Body

_PROBLEM = {"application/problem+json": {"schema": Problem.model_json_schema()}}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"description": description, "content": _PROBLEM}
    for status, description in {
        400: "Not JSON",
        413: "Body or predicted reply too large",
        415: "Wrong content type or encoding",
        422: "Wrong schema, or an input that does not fit",
        429: "Overloaded",
        500: "The engine failed",
        501: "The engine asked for is not installed",
        503: "The engine asked for is down",
        504: "The engine did not answer in time",
    }.items()
}


def documented(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """A route's replies, for the OpenAPI document."""
    binary = {SAFETENSORS: {"schema": {"type": "string", "format": "binary"}}}
    return {200: {"model": model, "content": binary}, **PROBLEMS}


def wants_safetensors(request: Request) -> bool:
    """Whether the client accepts the binary form by name."""
    accepted = request.headers.get("accept", "").lower().split(",")
    return any(item.partition(";")[0].strip() == SAFETENSORS for item in accepted)


class PartsResponse(Response):
    """A body that is sent in parts, as they are, with its length known."""

    def __init__(self, parts: Body, media_type: str, headers: dict[str, str]) -> None:
        length = sum(len(part) for part in parts)
        super().__init__(media_type=media_type, headers=headers | {"content-length": str(length)})
        self.parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the head, then the parts."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        last = len(self.parts) - 1
        for index, part in enumerate(self.parts):
            await send({"type": "http.response.body", "body": part, "more_body": index < last})


def respond(reply: Reply) -> Response:
    """A finished reply with its timings, in whole milliseconds as TEI gives them."""
    return PartsResponse(
        reply.body,
        reply.media_type,
        {
            "x-tokenization-time": str(round(1000 * reply.tokenization_seconds)),
            "x-queue-time": str(round(1000 * reply.queue_seconds)),
            "x-inference-time": str(round(1000 * reply.inference_seconds)),
            "x-compute-tokens": str(reply.tokens),
        },
    )
