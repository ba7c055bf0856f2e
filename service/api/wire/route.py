"""Routes that read strict JSON with a deadline, and responses that are sent in parts."""

from __future__ import annotations

import re
import string
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar, get_args, get_type_hints
from urllib.parse import quote

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, ExceptionHandler, Receive, Scope, Send

from service.api.wire.effective_fields import refusal, refused_field
from service.api.wire.media import JSON, SAFETENSORS, Part, Unwritten, prefers
from service.api.wire.picture_forms import MEDIA_TYPES, is_file, read_files
from service.api.wire.reply_headers import (
    MODEL_HEADER,
    Responses,
    check_expected,
    with_reply_headers,
)
from service.api.wire.strict_json import check_media_type, read_json
from service.errors import ModelNotLoaded, Unprocessable
from service.http.turns import TURN_BYTES, Turns, part_of
from service.inference.core import Inference
from service.inference.timings import Timings
from service.models.served import ServedModel
from service.models.state import ServiceState
from service.models.table import Models
from service.request_context import ErrorForm, RequestContext
from service.scheduler.call import Call

TIMEOUT_HEADER = b"x-request-timeout-ms"
SEND_BYTES = 2**20
"""Maximum bytes passed to the server at a time, since it copies bytes that cannot be sent yet."""
_MILLISECONDS = re.compile(rb"[0-9]{1,9}")
Schema = TypeVar("Schema", bound=BaseModel)


class ModelRequest(BaseModel):
    """Request that may name the model to use; it rejects unknown fields by default."""

    model_config = ConfigDict(extra="forbid")
    form_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields that identify this dialect's bodies among all bodies of the same path."""
    takes_files: ClassVar[bool] = False
    """Whether the body may also be a form with pictures, or one picture."""
    error_form: ClassVar[ErrorForm | None] = None
    """Format of errors for bodies of this schema; by default the format of the path's dialect."""

    model: str | None = Field(
        None, description="Which of several models answers; the first that can by default."
    )

    def check_model(self, inference: Inference) -> object:
        """Check that a model can answer the request; by default every model can.

        Raises:
            NoTaskHead: the model lacks the task head.

        """


class JsonRoute(APIRoute):
    """Route whose endpoint takes `body`, a pydantic model, and `request`, and returns a `Response`.

    The served model is chosen before the endpoint runs; see `model_of`. On a path that several
    dialects share, `body` is a union of their schemas. The first schema with one of its
    `form_fields` in the body is used, or else the first schema.

    FastAPI documents the route but does not parse the body: its dependency resolution, which these
    routes do not need, takes as long as the rest of a small request.
    """

    answer: Callable[[Request], Coroutine[Any, Any, Response]]
    """Function from a request to the endpoint's reply."""

    def __init__(self, *arguments: Any, responses: Responses | None = None, **options: Any) -> None:
        """Document the headers of replies; arguments as for `APIRoute`."""
        super().__init__(*arguments, responses=with_reply_headers(responses or {}), **options)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match like Starlette, but reject most other paths without a regular expression."""
        if not self.param_convertors and not scope["path"].endswith(self.path):
            return Match.NONE, {}
        return super().matches(scope)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Set and return `answer`."""
        hint = get_type_hints(self.endpoint)["body"]
        schemas: Sequence[type[ModelRequest]] = get_args(hint) or (hint,)
        takes_files = any(schema.takes_files for schema in schemas)

        async def handle(request: Request) -> Response:
            context = context_of(request)
            headers, reservation = context.headers, context.reservation
            content: object
            if takes_files and is_file(headers):
                query: bytes = request.scope["query_string"]
                content = await read_files(await body_of(request), headers, query, reservation)
            else:
                check_media_type(headers, MEDIA_TYPES if takes_files else (JSON,))
                content = await read_json(await body_of(request), reservation)
            schema = schema_of(content, schemas)
            context.error_form = schema.error_form
            body = validated(schema, content)
            model = await chosen_model(request, body.model, body.check_model)
            engine: str | None = getattr(body, "backend", None)
            return await answered(
                *(request, model, body.model),
                lambda: self.endpoint(body=body, request=request),
                engine,
            )

        self.answer = handle
        return handle


class DirectRoutes:
    """ASGI middleware that calls `JsonRoute`s of fixed paths without the application's layers.

    FastAPI and Starlette match every route's pattern, open exit stacks for dependencies and wrap
    each message, which takes longer than all the rest of a small request. JSON routes have no
    dependencies. Other requests take the application's way.
    """

    def __init__(
        self,
        app: ASGIApp,
        routes: Iterable[BaseRoute],
        handlers: Mapping[Any, ExceptionHandler],
    ) -> None:
        """Wrap the application's layers.

        Args:
            app: ASGI application of all other requests.
            routes: routes of the application, in order of precedence.
            handlers: function from a request and an exception to the reply, by exception class.

        """
        self._app = app
        self._handlers = handlers
        self._routes: dict[tuple[str, str], JsonRoute] = {}
        for route in routes:
            if isinstance(route, JsonRoute) and not route.param_convertors:
                for method in route.methods or ():
                    self._routes.setdefault((method, route.path), route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        route = self._routes.get((scope.get("method", ""), scope.get("path", "")))
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        request = Request(scope, receive, send)
        try:
            response = await route.answer(request)
            await response(scope, receive, send)
        except Exception as error:
            classes = type(error).__mro__
            handler = next((self._handlers[c] for c in classes if c in self._handlers), None)
            if handler is None or context_of(request).status:
                raise
            response = await handler(request, error)  # type: ignore[arg-type, misc]
            await response(scope, receive, send)


async def body_of(request: Request) -> bytes:
    """Return the body of a request, which can be read only once: its bytes are not kept."""
    body: bytes = (await request.receive())["body"]
    return body


async def chosen_model(
    request: Request, name: str | None, check: Callable[[Inference], object] = lambda _: None
) -> ServedModel:
    """Return the model that a request names, loading it first if it is loaded on demand.

    Args:
        request: HTTP request.
        name: name, alias or NAME@VERSION; None is the first model that passes the check.
        check: raises `NoTaskHead` if a model does not support the request.

    Raises:
        ModelNotLoaded: the model cannot be loaded by the request's deadline.
        UnknownModel: there are several models, and none has the name.
        ServiceError: the model cannot be loaded.

    """
    state = service_of(request)
    while True:
        try:
            return state.models.supporting(name, check)
        except ModelNotLoaded as missing:
            await state.control.obtain(missing, deadline_of(request))


async def answered(
    request: Request,
    model: ServedModel,
    asked: str | None,
    answer: Callable[[], Awaitable[Response]],
    engine: str | None = None,
) -> Response:
    """Return the reply of a model.

    Args:
        request: HTTP request; its context stores the model for `model_of`.
        model: model to answer with.
        asked: model name in the request, if any.
        answer: function that computes the reply of the request's model.
        engine: engine that the request names, if any.

    Raises:
        AnotherModel: the request expects another fingerprint.
        ServiceError: the reply cannot be computed.

    """
    answered_by(request, model, engine)
    check_expected(context_of(request).headers, fingerprint_of(request))
    response = await answer()
    name_model(response, service_of(request).models, asked, model)
    return response


def validated(schema: type[Schema], content: object) -> Schema:
    """Validate a JSON body against its schema.

    Raises:
        RequestValidationError: the body does not fit the schema, or has an unknown field that
            changes replies in another dialect.

    """
    if schema.model_config.get("extra") == "ignore" and isinstance(content, dict):
        refused = refused_field(content, schema.model_fields)
        if refused is not None:
            raise RequestValidationError([{"loc": ("body", refused), "msg": refusal(refused)}])
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError(
            [{**item, "loc": ("body", *item["loc"])} for item in errors]
        ) from None


def schema_of(content: object, schemas: Sequence[type[ModelRequest]]) -> type[ModelRequest]:
    """Return the schema whose `form_fields` identify the body, or else the first schema."""
    fields = content if isinstance(content, dict) else {}
    given = {name for name, value in fields.items() if value is not None}
    return next((schema for schema in schemas if schema.form_fields & given), schemas[0])


def service_of(request: Request) -> ServiceState:
    """Return the state of the service."""
    state: ServiceState = request.app.state.service
    return state


def context_of(request: Request) -> RequestContext[ServedModel]:
    """Return the context of a request."""
    context: RequestContext[ServedModel] = request.scope["context"]
    return context


def model_of(request: Request) -> ServedModel:
    """Return the model that answers a request; see `answered`."""
    model = context_of(request).model
    assert model is not None  # noqa: S101 - set before the endpoint runs
    return model


def answered_by(request: Request, model: ServedModel, engine: str | None = None) -> None:
    """Note the model that answers a request, and keep it in memory until the reply is sent.

    The reply, also an error, has the model's fingerprint.

    The fingerprint is that of the engine that takes the request's tasks; see `caller_of`.
    """
    context = context_of(request)
    if context.model is not model:
        model.uses.begin()
        context.reservation.on_release(model.uses.end)
    context.model = model
    context.fingerprint = model.fingerprint_header(engine)


def fingerprint_of(request: Request) -> tuple[bytes, bytes]:
    """Return the header with the fingerprint of the model and the engine that answer a request."""
    fingerprint = context_of(request).fingerprint
    assert fingerprint is not None  # noqa: S101 - set before the endpoint runs
    return fingerprint


def name_model(response: Response, models: Models, asked: str | None, model: ServedModel) -> None:
    """Add a header with the model's name if there are several, or if the request names another."""
    if models.several or asked not in (None, model.name):
        response.headers[MODEL_HEADER] = quote(model.name, safe=f"{string.punctuation} ")


def deadline_of(request: Request) -> float:
    """Return the `time.monotonic()` by which the reply must begin.

    It is the setting's, or an earlier one that `x-request-timeout-ms` requests.

    Raises:
        Unprocessable: the header is not a whole number of milliseconds.

    """
    seconds = service_of(request).settings.request_timeout_seconds
    context = context_of(request)
    asked = context.headers.get(TIMEOUT_HEADER)
    if asked is not None:
        if not _MILLISECONDS.fullmatch(asked):
            name = TIMEOUT_HEADER.decode()
            raise Unprocessable(f"{name} must be a whole number of milliseconds")
        seconds = min(seconds, int(asked) / 1000)
    return context.received + seconds


def caller_of(request: Request) -> Call:
    """Return the client and the deadline by which the reply must begin.

    Raises:
        Unprocessable: as for `deadline_of`.

    """
    context = context_of(request)

    def submitted_to(engine: str) -> None:
        context.fingerprint = own = model_of(request).fingerprint_header(engine)
        check_expected(context.headers, own)

    return Call(
        context.client,
        deadline_of(request),
        submitted_to=submitted_to,
        reservation=context.reservation,
    )


def wants_safetensors(request: Request) -> bool:
    """Return whether `Accept` names safetensors, with at least the weight of JSON."""
    accepted = context_of(request).headers.get(b"accept", b"")
    return prefers(str(accepted, "latin-1"), SAFETENSORS, JSON)


def _nothing() -> None:
    """Release nothing."""


@dataclass(frozen=True)
class Reply:
    """A reply in parts, the first of which are computed."""

    body: Sequence[Part | Unwritten]
    """Parts that are all written before the first is sent."""
    media_type: str
    timings: Timings
    rest: AsyncGenerator[Part | Unwritten, None] | None = None
    """Parts that are computed while the body is sent."""
    length: int | None = None
    """Bytes of all parts, if known beforehand."""
    release: Callable[[], None] = _nothing
    """Callback that releases the reserved bytes once the body is sent."""


class PartsResponse(Response):
    """Response sent part by part without copying, with its timings in the headers."""

    def __init__(self, reply: Reply) -> None:
        # without `Response.__init__`, which takes as long as the rest of a small reply's writing
        self.status_code = 200
        self.background = None
        self.media_type = reply.media_type
        self.reply = reply
        self.raw_headers = timing_headers(reply.timings)
        self.raw_headers.append((b"content-type", reply.media_type.encode()))
        if reply.length is not None:
            self.raw_headers.append((b"content-length", b"%d" % reply.length))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Write the body, then send the head, the body, and the rest as it is computed."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        rest = self.reply.rest
        context: RequestContext[ServedModel] = scope["context"]
        timings = self.reply.timings  # of a streamed reply, so far
        context.timings = timings if rest is None else replace(timings)
        try:
            written: list[Part] = []
            for piece in self.reply.body:
                if isinstance(piece, bytes | memoryview):
                    written.append(piece)
                    continue
                written.append(part_of(piece))
                if len(written[-1]) >= TURN_BYTES:
                    turns = scope["app"].state.service.turns
                    written += [part async for part in turns.rest(piece)]
            if rest is None:
                self.headers["content-length"] = str(sum(map(len, written)))
            await send(start)
            for left, part in zip(reversed(range(len(written))), written, strict=True):
                await _send(send, part, more=left > 0 or rest is not None)
            if rest is not None:
                async for piece in rest:
                    part = b""  # an item without pieces has no part
                    async for part in _written(scope, piece):
                        await _send(send, part)
                    del piece, part
                await _send(send, b"", more=False)
        finally:
            self.reply.release()
            if rest is not None:
                await rest.aclose()


def timing_headers(timings: Timings) -> list[tuple[bytes, bytes]]:
    """Return the headers of warnings and, as text-embeddings-inference names them, times in ms."""
    return [
        *((name.encode(), value.encode()) for name, value in timings.warnings.headers().items()),
        (b"x-tokenization-time", b"%d" % round(1000 * timings.tokenization_seconds)),
        (b"x-queue-time", b"%d" % round(1000 * timings.queue_seconds)),
        (b"x-inference-time", b"%d" % round(1000 * timings.inference_seconds)),
        (b"x-compute-tokens", b"%d" % timings.tokens),
    ]


async def _written(scope: Scope, part: Part | Unwritten) -> AsyncGenerator[Part]:
    """Yield a part as it is sent: itself, or its pieces joined to larger ones."""
    if isinstance(part, bytes | memoryview):
        yield part
    else:
        turns: Turns = scope["app"].state.service.turns
        async for piece in turns.written(part):
            yield piece


async def _send(send: Send, part: Part, *, more: bool = True) -> None:
    if len(part) > SEND_BYTES:
        part = memoryview(part)  # a slice of bytes would copy all the rest
    while len(part) > SEND_BYTES:
        await send({"type": "http.response.body", "body": part[:SEND_BYTES], "more_body": True})
        part = part[SEND_BYTES:]
    await send({"type": "http.response.body", "body": part, "more_body": more})
