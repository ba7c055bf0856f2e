"""Routes that read strict JSON with a deadline; replies that are reserved and sent in parts."""

from __future__ import annotations

import asyncio
import re
import string
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_type_hints
from urllib.parse import quote

from fastapi import Depends
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from service.api.wire.bodies import (
    MEDIA_TYPES,
    check_unknown,
    checked_media_type,
    read_files,
    read_json,
)
from service.api.wire.json_pieces import as_json, list_pieces
from service.api.wire.media import JSON, SAFETENSORS, Part, Unwritten, prefers
from service.api.wire.replies import Responses, describe_errors, with_reply_headers
from service.errors import (
    AnotherModel,
    Forbidden,
    ModelNotLoaded,
    ReplyTooLarge,
    Unauthorized,
    Unprocessable,
)
from service.exchange import NO_FINGERPRINT, ErrorForm, Exchange
from service.http.admission import ADMIN
from service.inference.core import Inference
from service.inference.fingerprint import EXPECT_HEADER, FINGERPRINT_CHARACTERS
from service.inference.timings import Timings
from service.models.served import ServedModel
from service.models.state import ServiceState
from service.scheduler.call import Call

TIMEOUT_HEADER = b"x-request-timeout-ms"
CHARACTER_BYTES = 6
"""Maximum bytes of a character in JSON."""
INLINE_BYTES = 2**18
"""Maximum bytes of a reply that is made on the event loop; a larger one is made in a thread."""
FEWER_TEXTS = "send fewer texts"
SEND_BYTES = 2**20
"""Maximum bytes passed to the server at a time, since it copies bytes that cannot be sent yet."""
_FINGERPRINT = re.compile(rb"[0-9a-f]{%d}" % FINGERPRINT_CHARACTERS)
EXPECTED = EXPECT_HEADER.encode()
_MILLISECONDS = re.compile(rb"[0-9]{1,9}")
Schema = TypeVar("Schema", bound=BaseModel)


class ServiceExchange(Exchange[ServiceState, ServedModel]):
    """Exchange of a route: the model that answers, the deadline, and the bytes of the reply."""

    async def chosen_model(
        self, name: str | None, check: Callable[[Inference], object] = lambda _: None
    ) -> ServedModel:
        """Return the model that a request names, loading it first if it is loaded on demand.

        The name may be an alias or NAME@VERSION; None is the first model that passes the check,
        which raises `NoTaskHead` if a model does not support the request. Errors are as of
        `Models.named`, and of loading.
        """
        service = self.service
        while True:
            try:
                return service.models.supporting(name, check)
            except ModelNotLoaded as missing:
                await service.control.obtain(missing, self.deadline())

    def bind_model(
        self, model: ServedModel, name: str | None = None, engine: str | None = None
    ) -> None:
        """Note the model that answers a request, and keep it in memory until the reply is sent.

        The reply, also an error, has the fingerprint of the engine, by default of the current one.
        It names the model if there are several, or if the request has another `name`.
        """
        if self.fingerprint is NO_FINGERPRINT:
            model.uses.begin()
            self.reservation.on_release(model.uses.end)
        self.model = model
        self.fingerprint = model.fingerprint_header(engine)
        if self.service.models.several or name not in (None, model.name):
            self.model_name = quote(model.name, safe=f"{string.punctuation} ").encode()

    def check_expected(self) -> None:
        """Raise if a request expects another model than the answering one."""
        expected, (name, answering) = self.headers.get(EXPECTED), self.fingerprint
        if expected in (None, answering):
            return
        if not _FINGERPRINT.fullmatch(expected):
            raise Unprocessable(
                f"{EXPECT_HEADER} must be {FINGERPRINT_CHARACTERS} hexadecimal digits, as in the "
                f"header {name.decode()} of replies"
            )
        raise AnotherModel(
            f"{EXPECT_HEADER} is {expected.decode()}, and the model here is {answering.decode()}: "
            "vectors of the two cannot be compared; send the request to the expected model, or "
            "compute the stored vectors again"
        )

    def deadline(self) -> float:
        """Return the `time.monotonic()` by which the reply must begin.

        It is the setting's, or an earlier one that `x-request-timeout-ms` requests, which
        `Unprocessable` rejects if it is not a whole number.
        """
        seconds = self.service.settings.request_timeout_seconds
        asked = self.headers.get(TIMEOUT_HEADER)
        if asked is not None:
            if not _MILLISECONDS.fullmatch(asked):
                name = TIMEOUT_HEADER.decode()
                raise Unprocessable(f"{name} must be a whole number of milliseconds")
            seconds = min(seconds, int(asked) / 1000)
        return self.received + seconds

    def call(self) -> Call:
        """Return the call of a request; errors as of `deadline`."""

        def submitted_to(engine: str) -> None:
            self.fingerprint = self.model.fingerprint_header(engine)
            if EXPECTED in self.headers:
                self.check_expected()

        finish_by = self.deadline()
        return Call(self.client, finish_by, submitted_to=submitted_to, reservation=self.reservation)

    def wants_safetensors(self) -> bool:
        """Return whether `Accept` names safetensors, with at least the weight of JSON."""
        accepted = self.headers.get(b"accept")
        return accepted is not None and prefers(accepted.decode("latin-1"), SAFETENSORS, JSON)

    def reserve(
        self,
        size: int,
        advice: str | None = FEWER_TEXTS,
        *,
        held: int | None = None,
        beside: int = 0,
        binary: bool = True,
    ) -> None:
        """Reserve the bytes of a reply before it is computed, and note their prediction.

        `held` are the bytes of the reply and its computation in memory, by default of the reply
        alone; its bytes `beside` the `size` have no limit. Other arguments and errors are as for
        `check_size`; the `advice` is None if the size is checked.

        Raises:
            Overloaded: other requests leave too few bytes.

        """
        if advice is not None and size > self.service.settings.max_response_bytes:
            self.check_size(size, advice, binary=binary)  # raises
        self.predicted_bytes = size + beside
        self.reservation.grow(size + beside if held is None else held, bounded=True)

    def check_size(self, size: int, advice: str, *, binary: bool = True) -> None:
        """Raise `ReplyTooLarge` for a reply that would be too large, before it is computed.

        The `advice` says how to get a smaller one: also in the binary format, unless the reply is
        `binary` or has no such format.
        """
        limit = self.service.settings.max_response_bytes
        if size > limit:
            or_binary = "" if binary else f", or for the binary form (Accept: {SAFETENSORS})"
            raise ReplyTooLarge(
                f"the reply would have about {size} bytes, more than {limit} "
                f"(--max-response-bytes): {advice}{or_binary}"
            )

    async def json_reply(self, content: Callable[[], object], timings: Timings) -> PartsResponse:
        """Return a JSON response of reserved bytes; items of a list are written one by one.

        `content` is called in a thread if the reply is large.
        """
        large = self.predicted_bytes > INLINE_BYTES
        value = await asyncio.to_thread(content) if large else content()
        part = list_pieces(value) if isinstance(value, list) else as_json(value)
        return PartsResponse([part], JSON, timings)

    def is_admin(self) -> bool:
        """Return whether a request has a key of `--admin-keys`."""
        return self.key.startswith(ADMIN)

    def require_admin(self) -> None:
        """Raise unless a request has a key of `--admin-keys`."""
        if self.service.settings.admin_keys is None:
            raise Forbidden(
                "models are changed with an admin key: start the service with --admin-keys"
            )
        if not self.key:
            raise Unauthorized("an admin key is needed: Authorization: Bearer KEY", prompts=False)
        if not self.is_admin():
            raise Forbidden(f"{self.key} may not change models: use a key of --admin-keys")

    async def read_admin(self, schema: type[Schema]) -> Schema:
        """Return the validated JSON body of an admin's request; an empty body is an object."""
        self.require_admin()
        body = self.take_body()
        if not body:
            return validated(schema, {})
        checked_media_type(self.headers, (JSON, ""))
        return validated(schema, await read_json(body, self.reservation))


async def _exchange_of(request: Request) -> ServiceExchange:
    exchange: ServiceExchange = request.scope["exchange"]
    return exchange


ApiExchange = Annotated[ServiceExchange, Depends(_exchange_of)]
"""Exchange of a route's request."""


class ModelRequest(BaseModel):
    """Request that may name the model to use; it rejects unknown fields by default."""

    model_config = ConfigDict(extra="forbid", defer_build=True)
    form_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields that identify this dialect's bodies among all bodies of the same path."""
    takes_files: ClassVar[bool] = False
    """Whether the body may also be a form with pictures, or one picture."""
    error_form: ClassVar[ErrorForm | None] = None
    """Format of errors for bodies of this schema; by default the format of the path's dialect."""
    needs: ClassVar[Callable[[Inference], object]] = lambda _: None
    """Check of a model; by default every model can answer."""

    model: str | None = Field(
        None, description="Which of several models answers; the first that can by default."
    )

    def check_model(self, inference: Inference) -> object:
        """Check that a model can answer the request; raise `NoTaskHead` if it lacks the head."""
        return type(self).needs(inference)


class JsonRoute(APIRoute):
    """Route whose endpoint takes `body`, a pydantic model, and `exchange`, and returns a response.

    The served model is chosen before the endpoint runs. On a path that several dialects share,
    `body` is a union of their schemas. The first schema with one of its `form_fields` in the body
    is used, or else the first schema.

    FastAPI only documents the route, once the OpenAPI document is requested: its dependency
    resolution, which these routes do not need, takes as long as the rest of a small request, and
    the schemas of all replies take a tenth of a start.
    """

    def __init__(
        self, path: str, endpoint: Callable[..., Coroutine[Any, Any, Response]], **options: Any
    ) -> None:
        """Initialise with arguments as for `APIRoute`."""
        hint = get_type_hints(endpoint)["body"]
        self.schemas: Sequence[type[ModelRequest]] = get_args(hint) or (hint,)
        """Schemas of the body."""
        takes_files = any(schema.takes_files for schema in self.schemas)
        self._media_types = MEDIA_TYPES if takes_files else (JSON,)

        async def handle(request: Request) -> Response:
            return await self.answer(request.scope["exchange"])

        Route.__init__(self, path, handle, methods=options["methods"])  # not APIRoute's: see above
        self.endpoint = endpoint
        responses = with_reply_headers(options["responses"] or {})
        self._documentation = {**options, "responses": responses}

    async def answer(self, exchange: ApiExchange) -> Response:
        """Read a request, and return the endpoint's reply."""
        headers, reservation = exchange.headers, exchange.reservation
        content: object
        if checked_media_type(headers, self._media_types) == JSON:
            content = await read_json(exchange.take_body(), reservation)
        else:
            query: bytes = exchange.scope["query_string"]
            content = await read_files(exchange.take_body(), headers, query, reservation)
        schema = self.schemas[0]
        if len(self.schemas) > 1 and isinstance(content, dict):
            given = {name for name, value in content.items() if value is not None}
            schema = next((one for one in self.schemas if one.form_fields & given), schema)
        exchange.error_form = schema.error_form
        body = validated(schema, content)
        model = await exchange.chosen_model(body.model, body.check_model)
        exchange.bind_model(model, body.model, getattr(body, "backend", None))
        if EXPECTED in headers:
            exchange.check_expected()
        return await self.endpoint(body=body, exchange=exchange)

    def build_schemas(self) -> None:
        """Build the schemas of the body, as the first body would; FastAPI's copies need them."""
        for schema in self.schemas:
            schema.model_config["defer_build"] = False
            schema.model_rebuild()

    def documented(self) -> APIRoute:
        """Return the route for the OpenAPI document, with the headers of replies."""
        self.build_schemas()
        return APIRoute(self.path, self.endpoint, **self._documentation)


def direct_routes(routes: Sequence[BaseRoute]) -> dict[tuple[str, str], JsonRoute]:
    """Return the JSON routes of fixed paths by method and path; see `DirectRoute`."""
    fixed = [one for one in routes if isinstance(one, JsonRoute) and not one.param_convertors]
    return {
        (method, route.path): route
        for route in reversed(fixed)  # the first of a path answers
        for method in route.methods or ()
    }


def validated(schema: type[Schema], content: object) -> Schema:
    """Validate a JSON body; raise `Unprocessable` if it does not fit the schema.

    It does not, either, if it has a field that is unknown here and changes other dialects' replies.
    """
    if isinstance(content, dict) and schema.model_config.get("extra") == "ignore":
        check_unknown(content, schema.model_fields)
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        raise Unprocessable(describe_errors(errors)) from None


def admin_errors(responses: Responses) -> Responses:
    """Return the error replies of an admin's route, in the form of the dialect's status 400."""
    meanings = {
        403: "The key may not change the served models, or the service has no admin key",
        404: "No such model or version",
        409: "Another load or unload of the model is running",
        422: "Wrong schema, or the model cannot be loaded",
        507: "The model exceeds the memory budget",
    }
    return {status: {**responses[400], "description": text} for status, text in meanings.items()}


class PartsResponse(Response):
    """Response sent part by part without copying, with its timings in the headers."""

    def __init__(
        self,
        body: Sequence[Part | Unwritten],
        media_type: str,
        timings: Timings,
        rest: AsyncGenerator[Part | Unwritten, None] | None = None,
        length: int | None = None,
    ) -> None:
        """Set the parts: all of `body` are written before the first is sent.

        The `rest` is computed while the body is sent; `length` counts the bytes of all parts.
        """
        # without `Response.__init__`, which takes as long as the rest of a small reply's writing
        self.status_code, self.background, self.media_type = 200, None, media_type
        self.raw_headers = [(b"content-type", media_type.encode())]
        self._parts, self._timings, self._rest, self._length = body, timings, rest, length

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Write the body, then send the head, the body, and the rest as it is computed."""
        exchange: ApiExchange = scope["exchange"]
        rest, length, turns = self._rest, self._length, exchange.service.turns
        written: list[Part] = []
        try:
            for part in self._parts:
                if isinstance(part, bytes | memoryview):
                    written.append(part)
                else:
                    written += [piece async for piece in turns.written(part)]
            exchange.timings = self._timings if rest is None else replace(self._timings)
            if rest is None and len(written) == 1 and len(written[0]) <= SEND_BYTES:
                await exchange.reply(200, self.raw_headers, written[0])
                return
            if rest is None:
                length = sum(map(len, written))
            await exchange.reply(200, self.raw_headers, length=length)
            for part in written:
                await _send(exchange.send, part)
            if rest is not None:
                async for item in rest:
                    async for piece in turns.written(item):
                        await _send(exchange.send, piece)
                        del piece  # else it is kept while more is written
                    del item
            await exchange.send({"type": "http.response.body", "body": b""})
        finally:
            if rest is not None:
                await rest.aclose()


async def _send(send: Send, part: Part) -> None:
    part = memoryview(part)  # a slice of bytes would copy all the rest
    for start in range(0, len(part), SEND_BYTES):
        sent = part[start : start + SEND_BYTES]
        await send({"type": "http.response.body", "body": sent, "more_body": True})
