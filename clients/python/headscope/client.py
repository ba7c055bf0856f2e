"""Synchronous client.

with Client("http://localhost:8000") as client:
    client.embed(["a text", "another"])  # [2, D]
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

import httpx

from headscope import calls, explanation, head_scores, ranking, tokens
from headscope.call import CallFor
from headscope.connection import HTTP_ERRORS, BaseClient, answer_of, lost, trusted, with_signature
from headscope.exchange import conduct
from headscope.fields import AttentionFields
from headscope.inputs import Text
from headscope.reply import Reply
from headscope.sending import Request, answered
from headscope.wire import JSON, Answer, Lost, Send, Steps, Together, Wait

P = ParamSpec("P")
T = TypeVar("T")


class Stopped(Exception):
    """Cancellation of an exchange because another one of the same call failed."""


def method(call: Callable[P, CallFor[T]]) -> Callable[Concatenate[Client, P], T]:
    """Turn a call into a method."""

    @functools.wraps(call)
    def wrapped(client: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return client.run(call(*args, **kwargs))

    with_signature(wrapped, call)
    return wrapped


class Client(BaseClient[httpx.BaseTransport, httpx.Client]):
    """Client of a service, with persistent connections; it is thread-safe."""

    encode = method(calls.encode)
    embed = method(calls.embed)
    attention = method(calls.attention)
    head_scores = method(head_scores.head_scores)
    explain = method(explanation.explain)
    predict = method(calls.predict)
    rerank = method(calls.rerank)
    rank = method(ranking.rank)
    explain_ranking = method(ranking.explain_ranking)
    score = method(ranking.score)
    embed_sparse = method(calls.embed_sparse)
    vocabulary = method(calls.vocabulary)
    tokenize = method(tokens.tokenize)
    verify = method(calls.verify)
    info = method(calls.info)
    models = method(calls.models)

    def _open(self, transport: httpx.BaseTransport | None, headers: dict[str, str]) -> httpx.Client:
        return httpx.Client(headers=headers, transport=transport, verify=trusted(self._session.url))

    def run(self, call: CallFor[T]) -> T:
        """Run a call and return its result.

        Raises:
            HeadscopeError: the call has no result; see `headscope.errors`.

        """
        result: T = self._drive(conduct(call, self._session), threading.Event())
        return result

    def request(
        self, path: str, body: Mapping[str, object] | None = None, *, accept: str = JSON
    ) -> Answer:
        """Send a request to any route, with retries; return the last answer, of any status.

        Args:
            path: path of the route, such as `/v1/embeddings`.
            body: JSON of a POST; None for a GET.
            accept: media type of the reply.

        Raises:
            NoConnection: there is no complete reply.
            DeadlineExceeded: `timeout` has passed.

        """
        steps = answered(Request.of(path, body, accept), self._session)
        answer: Answer = self._drive(steps, threading.Event())
        return answer

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self.close()

    def _drive(self, steps: Steps, stop: threading.Event) -> Any:
        result: Any = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as end:
                return end.value
            match step:
                case Send():
                    result = self._send(step)
                case Wait(seconds):
                    result = stop.wait(seconds)
                case Together(exchanges):
                    result = self._together(exchanges)
            if stop.is_set():
                raise Stopped

    def _together(self, exchanges: Sequence[Steps]) -> list[Any]:
        """Run exchanges in threads; the first failure stops all, after the requests in flight."""
        stop = threading.Event()

        def stoppable(steps: Steps) -> Any:
            if stop.is_set():
                raise Stopped
            try:
                return self._drive(steps, stop)
            except BaseException:
                stop.set()
                raise

        workers = min(self._max_in_flight, len(exchanges))
        if workers < 2:
            return [stoppable(steps) for steps in exchanges]
        with ThreadPoolExecutor(workers, "headscope") as pool:
            futures = [pool.submit(stoppable, steps) for steps in exchanges]
            try:
                wait_for(futures, return_when=FIRST_EXCEPTION)
            finally:
                stop.set()
                pool.shutdown(cancel_futures=True)
        errors = [future.exception() for future in futures if not future.cancelled()]
        for error in errors:
            if error is not None and not isinstance(error, Stopped):
                raise error
        return [future.result() for future in futures]

    def _send(self, step: Send) -> Answer | Lost:
        clock, begun = self._session.clock, False
        until = clock() + step.seconds
        try:
            request = self._request(step)
            response = self._http.send(request, stream=True)
            begun, parts = True, []
            try:
                for part in response.iter_bytes():
                    parts.append(part)
                    if clock() > until:
                        return Lost("the reply is too slow", begun=True, late=True)
            finally:
                response.close()
        except HTTP_ERRORS as error:
            return lost(error, step, begun=begun)
        return answer_of(response, b"".join(parts))


def attention(
    url: str,
    text: Text,
    *,
    api_key: str | None = None,
    timeout_seconds: float = 120,
    **fields: Unpack[AttentionFields],
) -> Reply:
    """Return one text's attention from the service at `url`.

    Args:
        url: address of the service, such as `http://localhost:8000`.
        text: a text, or a pair `("question", "answer")`.
        api_key: sent as `Authorization: Bearer …`.
        timeout_seconds: maximum seconds for the call.
        fields: further fields of `POST /attention`: `layers`, `heads`, `include`, `ablate`, …

    Raises:
        HeadscopeError: the service refuses, fails, or does not answer.
        ValueError: `url` is not an http or https address.

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
