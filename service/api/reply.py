"""How a route answers: which form was asked for, and the timings in the headers."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.api.native.forms import SAFETENSORS
from service.api.native.replies import Problem
from service.inference.core import Reply
from service.inference.maps import Part
from service.telemetry.requests import Took

_PROBLEM = {"application/problem+json": {"schema": Problem.model_json_schema()}}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"description": description, "content": _PROBLEM}
    for status, description in {
        400: "Not JSON",
        401: "No key, or a wrong one",
        408: "The request took too long to send",
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


SEND_BYTES = 2**20
"""The server copies what a client does not take at once: large parts are given to it in slices."""


class PartsResponse(Response):
    """A body that is sent in parts, as they are; the rest of it may still be computed."""

    def __init__(self, reply: Reply, headers: dict[str, str]) -> None:
        length = reply.length
        if reply.rest is None:
            length = sum(len(part) for part in reply.body)
        if length is not None:
            headers = headers | {"content-length": str(length)}
        super().__init__(media_type=reply.media_type, headers=headers)
        if length is None:
            del self.headers["content-length"]  # of the empty body that the base class was given
        self.reply = reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the head, then the parts."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        rest = self.reply.rest
        state = scope.get("state", {})
        if "took" in state:
            state["took"] = _took(self.reply)
        try:
            await send(start)
            *body, last = self.reply.body
            for part in body:
                await _send(send, part)
            await _send(send, last, more=rest is not None)
            if rest is not None:
                async for part in rest:
                    await _send(send, part)
                    del part
                await _send(send, b"", more=False)
        finally:
            self.reply.release()
            if rest is not None:
                await rest.aclose()


def _took(reply: Reply) -> Took:
    return Took(
        reply.tokens,
        reply.began,
        reply.tokenization_seconds,
        reply.queue_seconds,
        reply.inference_seconds,
    )


async def _send(send: Send, part: Part, *, more: bool = True) -> None:
    while len(part) > SEND_BYTES:
        await send({"type": "http.response.body", "body": part[:SEND_BYTES], "more_body": True})
        part = part[SEND_BYTES:]
    await send({"type": "http.response.body", "body": part, "more_body": more})


def respond(reply: Reply) -> Response:
    """A finished reply with its timings, in whole milliseconds as TEI gives them."""
    return PartsResponse(
        reply,
        {
            "x-tokenization-time": str(round(1000 * reply.tokenization_seconds)),
            "x-queue-time": str(round(1000 * reply.queue_seconds)),
            "x-inference-time": str(round(1000 * reply.inference_seconds)),
            "x-compute-tokens": str(reply.tokens),
        },
    )
