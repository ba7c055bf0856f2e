"""Client for asyncio: `Client` with `await`.

async with AsyncClient("http://localhost:8000") as client:
    await client.embed(["a text", "another"])  # [2, D]
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx

from headscope import calls, explanation, head_scores, ranking, tokens
from headscope.call import CallFor
from headscope.connection import HTTP_ERRORS, BaseClient, answer_of, lost, trusted, with_signature
from headscope.exchange import conduct
from headscope.sending import Request, answered
from headscope.wire import JSON, Answer, Lost, Send, Steps, Together, Wait

P = ParamSpec("P")
T = TypeVar("T")


def method(
    call: Callable[P, CallFor[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """Turn a call into a method."""

    @functools.wraps(call)
    async def wrapped(client: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await client.run(call(*args, **kwargs))

    with_signature(wrapped, call)
    return wrapped


class AsyncClient(BaseClient[httpx.AsyncBaseTransport, httpx.AsyncClient]):
    """Client of a service, with persistent connections, for the tasks of one event loop."""

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

    def _open(
        self, transport: httpx.AsyncBaseTransport | None, headers: dict[str, str]
    ) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            headers=headers, transport=transport, verify=trusted(self._session.url)
        )

    async def run(self, call: CallFor[T]) -> T:
        """Run a call and return its result.

        Raises:
            HeadscopeError: the call has no result; see `headscope.errors`.

        """
        result: T = await self._drive(conduct(call, self._session))
        return result

    async def request(
        self, path: str, body: Mapping[str, object] | None = None, *, accept: str = JSON
    ) -> Answer:
        """Send a request to any route, with retries; see `Client.request`."""
        answer: Answer = await self._drive(answered(Request.of(path, body, accept), self._session))
        return answer

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        await self.aclose()

    async def _drive(self, steps: Steps) -> Any:
        result: Any = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as end:
                return end.value
            match step:
                case Send():
                    result = await self._send(step)
                case Wait(seconds):
                    result = await asyncio.sleep(seconds, None)
                case Together(exchanges):
                    result = await self._together(exchanges)

    async def _together(self, exchanges: Sequence[Steps]) -> list[Any]:
        """Run exchanges in tasks; the first failure cancels the others."""
        room = asyncio.Semaphore(self._max_in_flight)

        async def limited(steps: Steps) -> Any:
            await room.acquire()
            result = await self._drive(steps)
            room.release()  # not after a failure, so that no further exchange begins
            return result

        failure = None
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(limited(steps)) for steps in exchanges]
        except BaseExceptionGroup as errors:
            failure = errors.exceptions[0]
        if failure:
            raise failure
        return [task.result() for task in tasks]

    async def _send(self, step: Send) -> Answer | Lost:
        begun = False
        try:
            async with asyncio.timeout(step.seconds):
                request = self._request(step)
                response = await self._http.send(request, stream=True)
                begun = True
                try:
                    content = await response.aread()
                finally:
                    await response.aclose()
        except (*HTTP_ERRORS, TimeoutError) as error:
            return lost(error, step, begun=begun)
        return answer_of(response, content)
