"""Synchronous client, and the client for asyncio, which is the same with `await`.

with Client("http://localhost:8000") as client:
    client.embed(["a text", "another"])  # [2, D]

async with AsyncClient("http://localhost:8000") as client:
    await client.embed(["a text", "another"])
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from headscope import calls, exchange, explanation, heads, ranking
from headscope.exchange import Call, conduct
from headscope.fields import AttentionFields
from headscope.heads import Reply
from headscope.inputs import Text
from headscope.sending import JSON, Answer, Session

P = ParamSpec("P")
T = TypeVar("T")


_starting = threading.Lock()


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all synchronous clients, which runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=_serve, args=[loop], name="headscope", daemon=True).start()
    return loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run the event loop, also after a call that ends in an exit of the process."""
    while True:
        with contextlib.suppress(SystemExit, KeyboardInterrupt):  # raised in the caller as well
            loop.run_forever()


os.register_at_fork(after_in_child=_loop.cache_clear)


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


class Client(Session):
    """Client of a service, with persistent connections; it is thread-safe."""

    encode = _method(calls.encode)
    embed = _method(calls.embed)
    attention = _method(heads.attention)
    head_scores = _method(heads.head_scores)
    explain = _method(explanation.explain)
    predict = _method(calls.predict)
    rerank = _method(ranking.rerank)
    rank = _method(ranking.rank)
    explain_ranking = _method(ranking.explain_ranking)
    score = _method(ranking.score)
    embed_sparse = _method(calls.embed_sparse)
    vocabulary = _method(calls.vocabulary)
    tokenize = _method(calls.tokenize)
    verify = _method(calls.verify)
    info = _method(exchange.info)
    models = _method(calls.models)
    _loop: asyncio.AbstractEventLoop | None = None
    """Event loop of the connections."""

    def run(self, call: Call[T]) -> T:
        """Run a call, and return its result or raise one of `headscope.errors`."""
        return self._finish(conduct(call, self))

    def request(
        self, path: str, body: Mapping[str, object] | None = None, *, accept: str = JSON
    ) -> Answer:
        """Send a request to any route, with retries; return the last answer, of any status.

        Without a body it is a GET. `accept` is the media type of the reply. Without a complete
        reply a `NoConnection` or `DeadlineExceeded` is raised.
        """
        return self._finish(self._answer(path, body, accept))

    def close(self) -> None:
        """Close the connections."""
        self._finish(self._close())

    async def _close(self) -> None:
        await self._http.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine in the event loop; an interrupt cancels it."""
        with _starting:
            loop = _loop()
            if self._loop not in (None, loop):  # the connections are the forked process's
                self._http = self._open()
            self._loop = loop
        if asyncio._get_running_loop() is loop:
            work.close()
            raise RuntimeError("a Client cannot be called while it tells of a retry")
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        finally:
            future.cancel()


class AsyncClient(Session):
    """Client of a service, with persistent connections, for the tasks of one event loop."""

    encode = _async_method(calls.encode)
    embed = _async_method(calls.embed)
    attention = _async_method(heads.attention)
    head_scores = _async_method(heads.head_scores)
    explain = _async_method(explanation.explain)
    predict = _async_method(calls.predict)
    rerank = _async_method(ranking.rerank)
    rank = _async_method(ranking.rank)
    explain_ranking = _async_method(ranking.explain_ranking)
    score = _async_method(ranking.score)
    embed_sparse = _async_method(calls.embed_sparse)
    vocabulary = _async_method(calls.vocabulary)
    tokenize = _async_method(calls.tokenize)
    verify = _async_method(calls.verify)
    info = _async_method(exchange.info)
    models = _async_method(calls.models)

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
