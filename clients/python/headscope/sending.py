"""Requests with their retries. They change nothing in the service, so they may be sent twice."""

from __future__ import annotations

import asyncio
import email.utils
import functools
import http
import json
import math
import random
import re
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from headscope.errors import (
    DeadlineExceeded,
    Failed,
    HeadscopeError,
    InvalidReply,
    NoConnection,
    NotFound,
    Overloaded,
    Refused,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from headscope.results import Info

T = TypeVar("T")
U = TypeVar("U")
JSON = "application/json"
CONNECT_SECONDS = 5.0
"""Timeout for connecting to the host, after which the client retries."""
KEY = re.compile(r"[!-~]+")
MAX_DETAIL_CHARACTERS = 1000
MAX_TIMEOUT_MS = 999_999_999
KINDS: Mapping[int, type[HeadscopeError]] = {
    401: Unauthorized,
    403: Unauthorized,
    404: NotFound,
    413: TooLarge,
    429: Overloaded,
    501: Refused,
    502: Unavailable,
    503: Unavailable,
}
MEANINGS = {
    "truncated": "cut to the most tokens",
    "prompt_missing": "computed without a prompt, though the model names prompts",
    "unknown_tokens": "computed with more than a tenth of unknown tokens",
}


@dataclass(frozen=True)
class Answer:
    """Complete reply."""

    status: int
    headers: Mapping[str, str]
    """Headers, with names in lower case."""
    content: bytes


@dataclass(frozen=True)
class Lost:
    """Request without a complete reply."""

    why: str
    begun: bool = False
    """Whether a part of the reply had arrived."""
    late: bool = False
    """Whether the remaining time has passed."""


class TextWarning(UserWarning):
    """Warning about a text that may not be computed as its caller expects."""


@dataclass
class Warnings:
    """Counts of texts in all replies to a client so far."""

    truncated: int = 0
    """Number of truncated texts; `truncated` of a result identifies them."""
    prompt_missing: int = 0
    """Number of texts without a prompt, for a model that names prompts but no default."""
    unknown_tokens: int = 0
    """Number of texts in which more than a tenth of the tokens are the unknown token."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def note(self, headers: Mapping[str, str]) -> None:
        """Add the counts of a reply, and warn of each kind when it first occurs."""
        for name, meaning in MEANINGS.items():
            count = int(headers.get(f"x-{name.replace('_', '-')}", 0))
            if not count:
                continue
            with self._lock:
                first = not getattr(self, name)
                setattr(self, name, getattr(self, name) + count)
            if first:
                which = "text was" if count == 1 else "texts were"
                message = f"{count} {which} {meaning}; see client.warnings for all replies"
                warnings.warn(message, TextWarning, stacklevel=2)


@dataclass(frozen=True)
class Retries:
    """Rules for sending a request again; the defaults suit a call of at most minutes."""

    count: int = 5
    """Maximum number of retries of a request."""
    statuses: Collection[int] = (429, 503)
    """Statuses of requests that may succeed a little later."""
    first_wait_seconds: float = 0.25
    longest_wait_seconds: float = 8.0
    longest_retry_after_seconds: float = math.inf
    """Maximum wait that is accepted from `retry-after`."""
    silence_seconds: float = math.inf
    """Seconds without a byte after which the connection counts as ended."""
    incomplete: bool = False
    """Whether a retry follows a connection that ended in the middle of its reply."""
    on_retry: Callable[[HeadscopeError], None] | None = None
    """Function called with the error of an attempt before the wait that precedes its retry."""

    def wait(self, error: HeadscopeError, attempt: int, jitter: float) -> float:
        """Return the seconds to wait before the next retry.

        The wait doubles with each retry, and half of it is random, so that clients that were
        refused together do not return together. It is never shorter than `retry-after`.
        """
        most = min(self.longest_wait_seconds, self.first_wait_seconds * (1 << attempt))
        requested = min(error.retry_after_seconds or 0, self.longest_retry_after_seconds)
        return requested + most * (1 + jitter) / 2


class Session:
    """Client of a service, whose calls are coroutines of one event loop.

    Calls take further fields of their route as keyword arguments. With `on_error="return"` a
    refused input of a list has its error in its place, and the others are answered.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout: float = 60,
        retries: int | Retries = 5,
        max_in_flight: int = 4,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Create a client; no request is sent yet.

        Args:
            url: address of the service, such as `http://localhost:8000`.
            api_key: sent as `Authorization: Bearer …`.
            timeout: seconds for a whole call, with all its requests and retries.
            retries: maximum retries of a request that was temporarily refused or not answered, or
                all rules of retries.
            max_in_flight: maximum number of concurrent requests of one call.
            transport: another of httpx's transports for asyncio, such as a Unix socket, or a fake
                for tests.

        Raises:
            TypeError: `transport` is one of httpx's transports without asyncio.
            ValueError: `url` is not an http or https address, or a number is out of range.

        """
        try:
            address = httpx.URL(url)
        except httpx.InvalidURL:
            address = httpx.URL()
        if address.scheme not in ("http", "https") or not address.host:
            raise ValueError(f"{url} is not an address of http or https")
        if not 0 < timeout < math.inf:
            raise ValueError(f"timeout is {timeout}: a number of seconds above 0 is needed")
        self.url, self.timeout = url.rstrip("/"), timeout
        self.retries = retries if isinstance(retries, Retries) else Retries(retries)
        if self.retries.count < 0 or max_in_flight < 1:
            raise ValueError("retries is at least 0, and max_in_flight at least 1")
        if api_key is not None and not KEY.fullmatch(api_key):
            raise ValueError("api_key is empty, or not of printable ASCII without spaces")
        self.clock: Callable[[], float] = time.monotonic
        self.jitter: Callable[[], float] = random.random
        self.infos: dict[str | None, Info] = {}
        """Information about models by name, requested once each."""
        self.warnings = Warnings()
        """Counts of texts that were truncated, lack a prompt, or have many unknown tokens."""
        self.fingerprint: str | None = None
        """Fingerprint of the model that gave the last result; None without the header."""
        self.expect_fingerprint: str | None = None
        """Fingerprint of the model that has to answer; None for any model.

        Set it to the `fingerprint` of stored vectors: a call that another model would answer raises
        `Refused` with status 409, before anything is computed.
        """
        if not isinstance(transport, httpx.AsyncBaseTransport | None):
            raise TypeError("transport needs httpx.AsyncBaseTransport, such as AsyncHTTPTransport")
        self._max_in_flight = max_in_flight
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        verify = _trusted(url)
        self._open = functools.partial(
            httpx.AsyncClient, headers=headers, transport=transport, verify=verify
        )
        self._http = self._open()

    async def _answer(
        self,
        path: str,
        body: Mapping[str, object] | None,
        accept: str = JSON,
        deadline: float | None = None,
    ) -> Answer:
        """Send a request with its retries, and return the last answer, of any status.

        The body of a POST may contain numpy's numbers and arrays; it is None for a GET. The
        deadline is by the session's clock; without one, the call begins now. After the last
        attempt a `NoConnection` or `DeadlineExceeded` is raised.
        """
        content = None
        if body is not None:
            content = json.dumps(body, allow_nan=False, default=_plain).encode("ascii")
        deadline = self.clock() + self.timeout if deadline is None else deadline
        retries, address = self.retries, self.url + path
        attempt = 0
        error: HeadscopeError | None = None
        while (left := deadline - self.clock()) > 0:
            outcome = await self._send(self._request(path, content, accept, left), left)
            if isinstance(outcome, Lost):
                if outcome.late:
                    break
                error = NoConnection(f"no reply from {address}: {outcome.why}")
                may_succeed = retries.incomplete or not outcome.begun
            elif outcome.status in retries.statuses:
                error, may_succeed = refusal(outcome, address), True
            else:
                return outcome
            wait = retries.wait(error, attempt, self.jitter())
            if not may_succeed or attempt >= retries.count or wait >= deadline - self.clock():
                if isinstance(outcome, Answer):
                    return outcome
                raise error
            if retries.on_retry:
                retries.on_retry(error)
            await self._wait(wait)
            attempt += 1
        message = f"no result from {self.url} within {self.timeout:g} seconds"
        before = f"; before that, {error}" if error else ""
        raise DeadlineExceeded(message + before, request_id=error.request_id if error else None)

    async def _map(
        self, function: Callable[[U], Coroutine[Any, Any, T]], parts: Sequence[U]
    ) -> list[T]:
        """Run a function of each part concurrently; the first failure cancels the others."""
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

    def _request(
        self, path: str, content: bytes | None, accept: str, seconds: float
    ) -> httpx.Request:
        """Return a request whose reply is needed within `seconds`; without content it is a GET."""
        silence = min(self.retries.silence_seconds, seconds)
        headers = {"accept": accept}
        if content is not None:
            headers["content-type"] = JSON
            headers["x-request-timeout-ms"] = str(max(1, int(min(1000 * silence, MAX_TIMEOUT_MS))))
            if self.expect_fingerprint is not None:
                headers["x-expect-fingerprint"] = self.expect_fingerprint
        return self._http.build_request(
            "GET" if content is None else "POST",
            self.url + path,
            headers=headers,
            content=content,
            timeout=httpx.Timeout(silence, connect=min(CONNECT_SECONDS, silence)),
        )

    async def _send(self, request: httpx.Request, seconds: float) -> Answer | Lost:
        begun = False
        try:
            async with asyncio.timeout(seconds):
                response = await self._http.send(request, stream=True)
                begun = True
                try:
                    content = await response.aread()
                finally:
                    await response.aclose()
        except (httpx.TransportError, httpx.DecodingError, TimeoutError) as error:
            silent = isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout | httpx.PoolTimeout)
            late = silent and self.retries.silence_seconds >= seconds
            late = late or isinstance(error, TimeoutError)
            return Lost(str(error) or type(error).__name__, begun, late)
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Answer(response.status_code, headers, content)

    async def _wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def _trusted(url: str) -> ssl.SSLContext | bool:
    """Return the certificates that an httpx client trusts: certifi's, and for HTTPS the system's.

    A company's own certificate authority is among the system's. Loading them takes 50 ms.
    """
    if not url.startswith("https:"):
        return True
    context = httpx.create_ssl_context()
    context.load_default_certs()
    return context


def _plain(value: Any) -> Any:
    """Convert a number or an array of numpy to Python's own types."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be sent")


def refusal(answer: Answer, url: str) -> HeadscopeError:
    """Return the error for an answer with a status other than 200."""
    status, (detail, from_service) = answer.status, words_of_error(answer)
    kind = KINDS.get(status, Refused if 400 <= status < 500 else Failed)
    message = f"{status}: {detail}"
    if status < 400:
        kind, message = InvalidReply, f"{message} (the answer of {url} is not from this service)"
    elif status == 404 and not from_service:
        message = f"{message} (is {url} this service?)"
    return kind(
        message,
        status,
        detail=detail,
        request_id=answer.headers.get("x-request-id"),
        retry_after_seconds=_retry_after(answer.headers.get("retry-after")),
    )


def words_of_error(answer: Answer) -> tuple[str, bool]:
    """Return the service's error message and True, or the status's name and False without one."""
    try:
        content = json.loads(answer.content)
        error = content["detail"] if "detail" in content else content["error"]
        words = error["message"] if isinstance(error, dict) else error
    except (ValueError, KeyError, TypeError):
        words = None
    if isinstance(words, str) and words:
        return words[:MAX_DETAIL_CHARACTERS], True
    try:
        return http.HTTPStatus(answer.status).phrase, False
    except ValueError:
        return "an unknown status", False


def _retry_after(value: str | None) -> float | None:
    """Return the seconds of a `retry-after` header, a number or a date (RFC 9110, 10.2.3).

    Other values are ignored: the result is None.
    """
    if value is None:
        return None
    if re.fullmatch(r"[0-9]{1,9}", value):
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
