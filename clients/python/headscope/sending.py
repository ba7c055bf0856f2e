"""Steps of one request with its retries.

Requests change nothing in the service, so they may be sent twice.
"""

from __future__ import annotations

import json
import math
import random
import threading
import time
import warnings
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headscope.errors import DeadlineExceeded, HeadscopeError, NoConnection
from headscope.service_results import Info
from headscope.wire import JSON, Answer, Lost, Send, Step, Wait, refusal

MEANINGS = {
    "truncated": "cut to the most tokens",
    "prompt_missing": "computed without a prompt, though the model names prompts",
    "unknown_tokens": "computed with more than a tenth of unknown tokens",
}


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
        """Add the counts of a reply, and warn of each kind when it first occurs.

        Raises:
            ValueError: a header is not a number.

        """
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


MAX_TIMEOUT_MS = 999_999_999


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

    def may_succeed(self, outcome: Answer | Lost) -> bool:
        """Return whether a retry may succeed."""
        if isinstance(outcome, Answer):
            return outcome.status in self.statuses
        return not outcome.late and (self.incomplete or not outcome.begun)

    def wait(self, error: HeadscopeError, attempt: int, jitter: float) -> float:
        """Return the seconds to wait before the next retry.

        The wait doubles with each retry, and half of it is random, so that clients that were
        refused together do not return together. It is never shorter than `retry-after`.
        """
        most = min(self.longest_wait_seconds, self.first_wait_seconds * (1 << attempt))
        requested = min(error.retry_after_seconds or 0, self.longest_retry_after_seconds)
        return requested + most * (1 + jitter) / 2


@dataclass
class Session:
    """State that all calls of a client share."""

    url: str
    timeout: float
    retries: Retries
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random
    infos: dict[str | None, Info] = field(default_factory=dict)
    """Information about models by name, requested once each."""
    warnings: Warnings = field(default_factory=Warnings)
    """Counts of texts that may not be computed as the caller expects."""
    fingerprint: str | None = None
    """Fingerprint of the model that gave the last result."""
    expect_fingerprint: str | None = None
    """Fingerprint of the only model whose results the caller accepts; None for any model."""

    @property
    def deadline(self) -> float:
        """Deadline of a call that begins now, by the session's clock."""
        return self.clock() + self.timeout


@dataclass(frozen=True)
class Request:
    """Request to a route: a POST of JSON, or a GET without content."""

    path: str
    content: bytes | None
    accept: str = JSON

    @classmethod
    def of(cls, path: str, body: Mapping[str, object] | None, accept: str = JSON) -> Request:
        """Return a request with a body that may contain numpy's numbers and arrays.

        Raises:
            TypeError: a value is not JSON.
            ValueError: a number is not finite.

        """
        if body is None:
            return cls(path, None, accept)
        content = json.dumps(body, allow_nan=False, default=_plain).encode("ascii")
        return cls(path, content, accept)

    def step(self, seconds: float, session: Session) -> Send:
        """Return the step that sends the request, and asks for a reply within the time left."""
        headers = {"accept": self.accept}
        silence_seconds = session.retries.silence_seconds
        if self.content is not None:
            milliseconds = 1000 * min(seconds, silence_seconds)
            headers |= {
                "content-type": JSON,
                "x-request-timeout-ms": str(max(1, int(min(milliseconds, MAX_TIMEOUT_MS)))),
            }
            if session.expect_fingerprint is not None:
                headers["x-expect-fingerprint"] = session.expect_fingerprint
        method = "GET" if self.content is None else "POST"
        return Send(method, self.path, headers, self.content, seconds, silence_seconds)


def answered(
    request: Request, session: Session, deadline: float | None = None
) -> Generator[Step, Answer | Lost, Answer]:
    """Yield the steps of a request with its retries; return the last answer, of any status.

    Args:
        request: the request.
        session: session of the client.
        deadline: deadline of the call, by the session's clock; by default it begins now.

    Raises:
        NoConnection: the last attempt has no complete reply.
        DeadlineExceeded: the deadline has passed.

    """
    deadline = session.deadline if deadline is None else deadline
    retries, address = session.retries, session.url + request.path
    attempt, error = 0, None
    while (left := deadline - session.clock()) > 0:
        outcome = yield request.step(left, session)
        may_succeed = retries.may_succeed(outcome)
        if isinstance(outcome, Answer):
            if not may_succeed:
                return outcome
            error = refusal(outcome, address)
        elif outcome.late:
            raise _late(session, error)
        else:
            error = NoConnection(f"no reply from {address}: {outcome.why}")
        wait = retries.wait(error, attempt, session.jitter())
        if not may_succeed or attempt >= retries.count or wait >= deadline - session.clock():
            if isinstance(outcome, Answer):
                return outcome
            raise error
        if retries.on_retry:
            retries.on_retry(error)
        yield Wait(wait)
        attempt += 1
    raise _late(session, error)


def _plain(value: Any) -> Any:
    """Convert a number or an array of numpy to Python's own types."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be sent")


def _late(session: Session, before: HeadscopeError | None) -> DeadlineExceeded:
    """Return the error of a call whose time has passed, with the previous error."""
    since = f"; before that, {before}" if before else ""
    message = f"no result from {session.url} within {session.timeout:g} seconds{since}"
    return DeadlineExceeded(message, request_id=before.request_id if before else None)
