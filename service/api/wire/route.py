"""Requests as routes read them, strict JSON with a deadline, and replies as they send them."""

from __future__ import annotations

import re
import string
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar, get_args, get_type_hints
from urllib.parse import quote

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from service.api.wire.accept import prefers
from service.api.wire.effective_fields import refusal, refused_field
from service.api.wire.media import SAFETENSORS, Part
from service.api.wire.strict_json import check_media_type, read_json
from service.errors import HeadsNotVerified, ServiceError, Unprocessable
from service.inference.core import Inference
from service.inference.timings import Timings
from service.scheduler.submission import Caller
from service.serving.models import Models, ServedModel
from service.serving.state import ServiceState

TIMEOUT_HEADER = "x-request-timeout-ms"
MODEL_HEADER = "x-model"
SEND_BYTES = 2**20
"""The server copies what a client does not take at once: large parts are given to it in slices."""
_MILLISECONDS = re.compile(r"[0-9]{1,9}")
Schema = TypeVar("Schema", bound=BaseModel)
ErrorForm = Callable[[ServiceError, str], Response]
"""Error and request id → reply."""


class ModelRequest(BaseModel):
    """A request that may choose one of several models."""

    form_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields any of which tells its bodies from the other dialects' bodies of the same path."""
    error_form: ClassVar[ErrorForm | None] = None
    """Form of errors once a body is known to be its own; that of the path's dialect when None."""

    model: str | None = Field(
        None, description="Which of several models answers; the first that can by default."
    )

    def check_model(self, inference: Inference) -> object:
        """What the request needs of a model beside vectors; nothing by default.

        Raises:
            NoTaskHead: the model does not have it.

        """


class JsonRoute(APIRoute):
    """A route whose endpoint takes `body`, a model, and `request`, and answers a `Response`.

    Which model is to answer is found before; see `model_of`. Where several dialects share the
    path, `body` is a union of theirs: the first one of whose `form_fields` a body has, or else the
    first.

    FastAPI documents it; its own way from body to endpoint, which solves dependencies that these
    routes do not have, costs as much as all else in a small request.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """As Starlette's; most paths are other routes', which no regular expression has to tell."""
        if not self.param_convertors and not scope["path"].endswith(self.path):
            return Match.NONE, {}
        return super().matches(scope)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The function from a request to the endpoint's reply."""
        hint = get_type_hints(self.endpoint)["body"]
        schemas: Sequence[type[ModelRequest]] = get_args(hint) or (hint,)

        async def handle(request: Request) -> Response:
            check_media_type(request)
            content = await read_json(await body_of(request), request.state.reservation)
            schema = schema_of(content, schemas)
            request.state.error_form = schema.error_form
            body = validated(schema, content)
            model = service_of(request).models.able(body.model, body.check_model)
            return await answered(
                request, model, body.model, lambda: self.endpoint(body=body, request=request)
            )

        return handle


async def body_of(request: Request) -> bytes:
    """Return the body of a request, which can be read once: nobody keeps its bytes."""
    body: bytes = (await request.receive())["body"]
    return body


async def answered(
    request: Request,
    model: ServedModel,
    asked: str | None,
    answer: Callable[[], Awaitable[Response]],
) -> Response:
    """Return a model's reply, or its twin's where the model is not served for heads.

    Args:
        request: gets the model as its state, which `model_of` reads.
        model: the one that is to answer.
        asked: the name that the request has.
        answer: computes the reply of the request's model.

    Raises:
        ServiceError: the reply cannot be computed.

    """
    models = service_of(request).models
    answered_by(request, model)
    try:
        response = await answer()
    except HeadsNotVerified:
        twin = models.twin_of(model)
        if twin is None:
            raise
        model = twin
        answered_by(request, model)
        response = await answer()
    name_model(response, models, asked, model)
    return response


def validated(schema: type[Schema], content: Any) -> Schema:
    """Return a body of JSON as its schema has it.

    Raises:
        RequestValidationError: the body does not fit the schema, or the schema would ignore a
            field that changes replies elsewhere.

    """
    if schema.model_config.get("extra") == "ignore" and isinstance(content, dict):
        refused = refused_field(content, schema.model_fields)
        if refused is not None:
            raise RequestValidationError([{"loc": ("body", refused), "msg": refusal(refused)}])
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError(
            [{**item, "loc": ("body", *item["loc"])} for item in found]
        ) from None


def schema_of(content: Any, schemas: Sequence[type[ModelRequest]]) -> type[ModelRequest]:
    """The one of several dialects' requests that a body is; the first where it cannot be told."""
    fields = content if isinstance(content, dict) else {}
    given = {name for name, value in fields.items() if value is not None}
    return next((one for one in schemas if one.form_fields & given), schemas[0])


def service_of(request: Request) -> ServiceState:
    """The state of the service that a request came to."""
    state: ServiceState = request.app.state.service
    return state


def model_of(request: Request) -> ServedModel:
    """Return the model that answers a request; see `answered`."""
    model: ServedModel = request.state.model
    return model


def answered_by(request: Request, model: ServedModel) -> None:
    """Note the model that answers a request; the reply, also an error, has its fingerprint."""
    request.state.model = model
    request.state.fingerprint = model.fingerprint_header


def name_model(response: Response, models: Models, asked: str | None, model: ServedModel) -> None:
    """Say in a header which model answered, unless it is the only one and the one asked for."""
    if models.several_answer or asked not in (None, model.name):
        response.headers[MODEL_HEADER] = quote(model.name, safe=f"{string.punctuation} ")


def caller_of(request: Request) -> Caller:
    """Who asks, and until when the reply must have begun: the setting, or what the caller asks.

    Raises:
        Unprocessable: the header is no whole number of milliseconds.

    """
    seconds = service_of(request).settings.request_timeout_seconds
    asked = request.headers.get(TIMEOUT_HEADER)
    if asked is not None:
        if not _MILLISECONDS.fullmatch(asked):
            raise Unprocessable(f"{TIMEOUT_HEADER} must be a whole number of milliseconds")
        seconds = min(seconds, int(asked) / 1000)
    state = request.state
    return Caller(state.client, state.received + seconds, reservation=state.reservation)


def wants_safetensors(request: Request) -> bool:
    """Whether the client accepts the binary form by name, and likes JSON no more."""
    accepted = ",".join(request.headers.getlist("accept"))
    return prefers(accepted, SAFETENSORS, "application/json")


def _nothing() -> None:
    """Nothing to release."""


@dataclass(frozen=True)
class Reply:
    """A reply in parts, the first of which are complete."""

    body: list[Part]
    media_type: str
    timings: Timings
    rest: AsyncGenerator[Part, None] | None = None
    """Parts that are computed while the body is sent."""
    length: int | None = None
    """Bytes of all parts, where that is known beforehand."""
    release: Callable[[], None] = _nothing
    """Called once the body is sent, to give back its bytes in flight."""


class PartsResponse(Response):
    """A reply sent part by part, without copying one, and with its timings in the headers."""

    def __init__(self, reply: Reply) -> None:
        length = reply.length
        if reply.rest is None:
            length = sum(len(part) for part in reply.body)
        headers = timing_headers(reply.timings)
        if length is not None:
            headers["content-length"] = str(length)
        super().__init__(media_type=reply.media_type, headers=headers)
        if length is None:
            del self.headers["content-length"]  # of the empty body that the base class was given
        self.reply = reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the head, then the parts."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        rest = self.reply.rest
        scope["state"]["timings"] = replace(self.reply.timings)  # of a streamed reply, so far
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


def timing_headers(timings: Timings) -> dict[str, str]:
    """Return the headers of a reply's notices, and of whole milliseconds of each step.

    The names of the latter are text-embeddings-inference's.
    """
    return timings.notices.headers() | {
        "x-tokenization-time": str(round(1000 * timings.tokenization_seconds)),
        "x-queue-time": str(round(1000 * timings.queue_seconds)),
        "x-inference-time": str(round(1000 * timings.inference_seconds)),
        "x-compute-tokens": str(timings.tokens),
    }


async def _send(send: Send, part: Part, *, more: bool = True) -> None:
    while len(part) > SEND_BYTES:
        await send({"type": "http.response.body", "body": part[:SEND_BYTES], "more_body": True})
        part = part[SEND_BYTES:]
    await send({"type": "http.response.body", "body": part, "more_body": more})
