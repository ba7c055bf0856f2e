"""Synchronous client, and the client for asyncio, which is the same with `await`.

with Client("http://localhost:8000") as client:
    client.embed(["a text", "another"])  # [2, D]

async with AsyncClient("http://localhost:8000") as client:
    await client.embed(["a text", "another"])
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import re
import ssl
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack

import httpx

from headscope import calls, exchange, explanation, heads, ranking
from headscope.exchange import Call, conduct
from headscope.fields import AttentionFields
from headscope.heads import Reply
from headscope.inputs import Text
from headscope.sending import (
    JSON,
    Answer,
    Lost,
    Retries,
    Send,
    Session,
)

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")
Transport = TypeVar("Transport")
Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)
CONNECT_SECONDS = 5.0
"""Timeout for connecting to the host, after which the client retries."""
KEY = re.compile(r"[!-~]+")
HTTP_ERRORS = (httpx.TransportError, httpx.DecodingError)
"""Exceptions of sending a request and reading its reply."""


class BaseClient(Session, Generic[Transport, Http]):
    """Client of a service, without sending and waiting.

    Calls take further fields of their route as keyword arguments. With `on_error="return"` a
    refused input of a list has its error in its place, and the others are answered.
    """

    _open: Callable[..., Http]

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout: float = 60,
        retries: int | Retries = 5,
        max_in_flight: int = 4,
        transport: Transport | None = None,
    ) -> None:
        """Create a client; no request is sent yet.

        Args:
            url: address of the service, such as `http://localhost:8000`.
            api_key: sent as `Authorization: Bearer …`.
            timeout: seconds for a whole call, with all its requests and retries.
            retries: maximum retries of a request that was temporarily refused or not answered, or
                all rules of retries.
            max_in_flight: maximum number of concurrent requests of one call.
            transport: another httpx transport, such as a Unix socket, or a fake for tests.

        Raises:
            ValueError: `url` is not an http or https address, or a number is out of range.

        """
        policy = retries if isinstance(retries, Retries) else Retries(retries)
        try:
            address = httpx.URL(url)
        except httpx.InvalidURL:
            address = httpx.URL()
        if address.scheme not in ("http", "https") or not address.host:
            raise ValueError(f"{url} is not an address of http or https")
        if not 0 < timeout < math.inf:
            raise ValueError(f"timeout is {timeout}: a number of seconds above 0 is needed")
        if policy.count < 0 or max_in_flight < 1:
            raise ValueError("retries is at least 0, and max_in_flight at least 1")
        if api_key is not None and not KEY.fullmatch(api_key):
            raise ValueError("api_key is empty, or not of printable ASCII without spaces")
        super().__init__(url.rstrip("/"), timeout, policy)
        self._max_in_flight = max_in_flight
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._http: Http = self._open(headers=headers, transport=transport, verify=_trusted(url))

    def _request(self, step: Send) -> httpx.Request:
        silence = min(step.silence_seconds, step.seconds)
        return self._http.build_request(
            "GET" if step.content is None else "POST",
            self.url + step.path,
            headers=step.headers,
            content=step.content,
            timeout=httpx.Timeout(silence, connect=min(CONNECT_SECONDS, silence)),
        )


def _trusted(url: str) -> ssl.SSLContext | bool:
    """Return the certificates that an httpx client trusts: certifi's, and for HTTPS the system's.

    A company's own certificate authority is among the system's. Loading them takes 50 ms.
    """
    if not url.startswith("https:"):
        return True
    context = httpx.create_ssl_context()
    context.load_default_certs()
    return context


def _read(response: httpx.Response, content: bytes) -> Answer:
    """Return a reply that was read completely."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status_code, headers, content)


def _lost(error: Exception, step: Send, *, begun: bool) -> Lost:
    """Return the outcome of a request without a complete reply.

    The error is one of `HTTP_ERRORS`, or a TimeoutError after the seconds of the step. `begun`
    tells whether a part of the reply had arrived.
    """
    silent = isinstance(error, httpx.TimeoutException) and not isinstance(
        error, httpx.ConnectTimeout
    )
    late = isinstance(error, TimeoutError) or (silent and step.silence_seconds >= step.seconds)
    return Lost(str(error) or type(error).__name__, begun, late)


def _described(method: Callable[..., object], call: Callable[..., object]) -> None:
    """Give a method its call's name, documentation and parameters, for `help` and notebooks."""
    functools.update_wrapper(method, call)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    signature = inspect.signature(call)
    method.__dict__["__signature__"] = signature.replace(
        parameters=[own, *signature.parameters.values()],
        return_annotation=inspect.Signature.empty,
    )


def _method(call: Callable[P, Call[T]]) -> Callable[Concatenate[Client, P], T]:
    """Turn a call into a method of `Client`."""

    def method(client: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return client.run(call(*args, **kwargs))

    _described(method, call)
    return method


def _async_method(
    call: Callable[P, Call[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """Turn a call into a method of `AsyncClient`."""

    async def method(client: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await client.run(call(*args, **kwargs))

    _described(method, call)
    return method


class _Stopped(Exception):
    """Cancellation of an exchange because another one of the same call failed."""


class _Thread(threading.local):
    """State of a thread: the event that is set when another exchange of its call has failed."""

    def __init__(self) -> None:
        self.stop = threading.Event()


_THREAD = _Thread()


def _finish(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("a synchronous client suspends")


class Client(BaseClient[httpx.BaseTransport, httpx.Client]):
    """Client of a service, with persistent connections; it is thread-safe."""

    encode = _method(calls.encode)
    embed = _method(calls.embed)
    attention = _method(heads.attention)
    head_scores = _method(heads.head_scores)
    explain = _method(explanation.explain)
    predict = _method(calls.predict)
    rerank = _method(calls.rerank)
    rank = _method(ranking.rank)
    explain_ranking = _method(ranking.explain_ranking)
    score = _method(ranking.score)
    embed_sparse = _method(calls.embed_sparse)
    vocabulary = _method(calls.vocabulary)
    tokenize = _method(calls.tokenize)
    verify = _method(calls.verify)
    info = _method(exchange.info)
    models = _method(calls.models)
    _open = httpx.Client

    def run(self, call: Call[T]) -> T:
        """Run a call, and return its result or raise one of `headscope.errors`."""
        return _finish(conduct(call, self))

    def request(
        self, path: str, body: Mapping[str, object] | None = None, *, accept: str = JSON
    ) -> Answer:
        """Send a request to any route, with retries; return the last answer, of any status.

        Without a body it is a GET. `accept` is the media type of the reply. Without a complete
        reply a `NoConnection` or `DeadlineExceeded` is raised.
        """
        return _finish(self._answer(path, body, accept))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _map(
        self, function: Callable[[U], Coroutine[Any, Any, T]], parts: Sequence[U]
    ) -> list[T]:
        """Run a function in threads; the first failure ends all, after the requests in flight."""
        stop = threading.Event()

        def run(part: U) -> T:
            _THREAD.stop = stop
            try:
                return _finish(function(part))
            except BaseException:
                stop.set()
                raise

        workers = min(self._max_in_flight, len(parts))
        if workers < 2:
            return [_finish(function(part)) for part in parts]
        with ThreadPoolExecutor(workers, "headscope") as pool:
            futures = [pool.submit(run, part) for part in parts]
            try:
                wait_for(futures, return_when=FIRST_EXCEPTION)
            finally:
                stop.set()
                pool.shutdown(cancel_futures=True)
        errors = [future.exception() for future in futures if not future.cancelled()]
        for error in errors:
            if error is not None and not isinstance(error, _Stopped):
                raise error
        return [future.result() for future in futures]

    async def _wait(self, seconds: float) -> None:
        _THREAD.stop.wait(seconds)

    async def _send(self, step: Send) -> Answer | Lost:
        if _THREAD.stop.is_set():
            raise _Stopped
        clock, begun = self.clock, False
        until = clock() + step.seconds
        try:
            response = self._http.send(self._request(step), stream=True)
            begun, parts = True, []
            try:
                for part in response.iter_bytes():
                    parts.append(part)
                    if clock() > until:
                        return Lost("the reply is too slow", begun=True, late=True)
            finally:
                response.close()
        except HTTP_ERRORS as error:
            return _lost(error, step, begun=begun)
        return _read(response, b"".join(parts))


class AsyncClient(BaseClient[httpx.AsyncBaseTransport, httpx.AsyncClient]):
    """Client of a service, with persistent connections, for the tasks of one event loop."""

    encode = _async_method(calls.encode)
    embed = _async_method(calls.embed)
    attention = _async_method(heads.attention)
    head_scores = _async_method(heads.head_scores)
    explain = _async_method(explanation.explain)
    predict = _async_method(calls.predict)
    rerank = _async_method(calls.rerank)
    rank = _async_method(ranking.rank)
    explain_ranking = _async_method(ranking.explain_ranking)
    score = _async_method(ranking.score)
    embed_sparse = _async_method(calls.embed_sparse)
    vocabulary = _async_method(calls.vocabulary)
    tokenize = _async_method(calls.tokenize)
    verify = _async_method(calls.verify)
    info = _async_method(exchange.info)
    models = _async_method(calls.models)
    _open = httpx.AsyncClient

    async def run(self, call: Call[T]) -> T:
        """Run a call and return its result; see `Client.run`."""
        return await conduct(call, self)

    async def request(
        self, path: str, body: Mapping[str, object] | None = None, *, accept: str = JSON
    ) -> Answer:
        """Send a request to any route, with retries; see `Client.request`."""
        return await self._answer(path, body, accept)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _map(
        self, function: Callable[[U], Coroutine[Any, Any, T]], parts: Sequence[U]
    ) -> list[T]:
        """Run a function in tasks; the first failure cancels the others."""
        room = asyncio.Semaphore(self._max_in_flight)

        async def limited(part: U) -> T:
            await room.acquire()
            result = await function(part)
            room.release()  # not after a failure, so that no further exchange begins
            return result

        failure = None
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(limited(part)) for part in parts]
        except BaseExceptionGroup as errors:
            failure = errors.exceptions[0]
        if failure:
            raise failure
        return [task.result() for task in tasks]

    async def _wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _send(self, step: Send) -> Answer | Lost:
        begun = False
        try:
            async with asyncio.timeout(step.seconds):
                response = await self._http.send(self._request(step), stream=True)
                begun = True
                try:
                    content = await response.aread()
                finally:
                    await response.aclose()
        except (*HTTP_ERRORS, TimeoutError) as error:
            return _lost(error, step, begun=begun)
        return _read(response, content)


def attention(
    url: str,
    text: Text,
    *,
    api_key: str | None = None,
    timeout_seconds: float = 120,
    **fields: Unpack[AttentionFields],
) -> Reply:
    """Return one text's attention from the service at `url`.

    The text may be a pair `("question", "answer")`. Further fields of `POST /attention` are
    `layers`, `heads`, `include`, `ablate`, … Errors are those of `Client.attention`.
    """
    return attentions(url, [text], api_key=api_key, timeout_seconds=timeout_seconds, **fields)[0]


def attentions(
    url: str,
    texts: Sequence[Text],
    *,
    api_key: str | None = None,
    timeout_seconds: float = 120,
    **fields: Unpack[AttentionFields],
) -> list[Reply]:
    """Return the attention of several texts or pairs; arguments as for `attention`."""
    with Client(url, api_key=api_key, timeout=timeout_seconds) as client:
        return client.attention(texts, **fields)
