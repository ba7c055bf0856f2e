"""Steps of a call: requests for parts of its inputs, retries, one deadline for all.

The client retries after 429 and 503, and after connections that end before any of the reply has
arrived. Requests change nothing in the service, so they may be sent twice.
"""

from __future__ import annotations

import json
import random
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headscope import service_calls
from headscope.batches import ranges_of
from headscope.call import Call
from headscope.errors import (
    DeadlineExceeded,
    HeadscopeError,
    InvalidReply,
    NoConnection,
    Refused,
)
from headscope.isolation import pieces_of
from headscope.notices import Notices
from headscope.reading import NOT_OURS
from headscope.service_results import Info
from headscope.wire import RETRIED, Answer, Lost, Send, Step, Together, Wait, refusal

P = TypeVar("P")
T = TypeVar("T")
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.25, 8.0
MAX_TIMEOUT_MS = 999_999_999


@dataclass
class Session:
    """State that all calls of a client share."""

    url: str
    timeout: float
    retries: int
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random
    infos: dict[str | None, Info] = field(default_factory=dict)
    """Information about models by name, requested once each."""
    notices: Notices = field(default_factory=Notices)
    """Counts of texts that may not be computed as the caller expects."""
    fingerprint: str | None = None
    """Fingerprint of the model that gave the last result."""


def conduct(call: Call[Any, T], session: Session) -> Generator[Step, Any, T]:
    """Yield the steps of a whole call; return its result.

    Raises:
        HeadscopeError: a request has no result; the error's `inputs` tells which.

    """
    deadline = session.clock() + session.timeout
    if call.body is None:
        replies = yield from exchange(call, range(0), session, deadline, set())
        return call.join(replies)
    parts = [range(len(call.inputs))] if call.inputs else []
    answered: set[str] = set()
    if len(call.inputs) > 1 and not call.whole:
        info = session.infos.get(call.model)
        if info is None:
            info_call = service_calls.info(call.model)
            infos = yield from exchange(info_call, range(0), session, deadline, set())
            info = session.infos[call.model] = infos[0]
        parts = list(ranges_of(call, info))
    groups = yield Together([exchange(call, part, session, deadline, answered) for part in parts])
    return call.join([reply for replies in groups for reply in replies])


def exchange(
    call: Call[P, Any], part: range, session: Session, deadline: float, answered: set[str]
) -> Generator[Step, Any, list[P]]:
    """Yield the steps for some inputs, split into several requests after a refusal.

    Args:
        call: the call.
        part: indices of the inputs.
        session: session of the client.
        deadline: deadline of the call, by the session's clock.
        answered: fingerprints of the models that answered the call's requests so far.

    Returns:
        The replies in the order of the inputs. An input whose error is returned has a list with
        that error as its reply.

    """
    replies: list[Any] = []
    pending: deque[range | Refused] = deque([part])
    while pending:
        piece = pending.popleft()
        if isinstance(piece, Refused):
            replies.append([piece])
            continue
        try:
            answer = yield from requested(call, piece, session, deadline)
            replies.append(read(call, piece, answer, session, answered))
        except HeadscopeError as error:
            pending.extendleft(reversed(pieces_of(error, call, piece)))
    return replies


def requested(
    call: Call[Any, Any], part: range, session: Session, deadline: float
) -> Generator[Step, Any, Answer]:
    """Yield the steps of one request with its retries; return its answer with status 200.

    Raises:
        HeadscopeError: the request has no result.

    """
    content = body_of(call, part)
    attempt, error = 0, None
    while (left := deadline - session.clock()) > 0:
        answer = yield request_of(call, content, left)
        if isinstance(answer, Answer) and answer.status == 200:
            return answer
        error = error_of(answer, call, session, error)
        wait = waiting(error, attempt, session.jitter())
        left = deadline - session.clock()
        if not may_succeed(answer) or attempt >= session.retries or wait >= left:
            raise error
        yield Wait(wait)
        attempt += 1
    raise late(session, error)


def body_of(call: Call[Any, Any], part: range) -> bytes | None:
    """Return the body of a request; None for a GET."""
    if call.body is None:
        return None
    content = call.written(part) | dict(call.body)
    return json.dumps(content, allow_nan=False, default=plain).encode("ascii")


def plain(value: Any) -> Any:
    """Convert a number or an array of numpy to Python's own types."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be sent")


def request_of(call: Call[Any, Any], content: bytes | None, seconds: float) -> Send:
    """Return a request that asks the service to answer within the remaining time."""
    headers = {"accept": call.accept}
    if content is not None:
        milliseconds = max(1, min(int(1000 * seconds), MAX_TIMEOUT_MS))
        headers |= {
            "content-type": "application/json",
            "x-request-timeout-ms": str(milliseconds),
        }
    return Send("GET" if content is None else "POST", call.path, headers, content, seconds)


def read(
    call: Call[P, Any], part: range, answer: Answer, session: Session, answered: set[str]
) -> P:
    """Parse a reply with status 200, and add its model's fingerprint to `answered`.

    Raises:
        InvalidReply: the reply does not have this service's format, or comes from another model
            than previous ones.

    """
    try:
        session.notices.note(answer.headers)
        session.fingerprint = answer.headers.get("x-fingerprint")
        result = call.read_part(answer.content, part)
    except NOT_OURS as error:
        address = session.url + call.path
        raise InvalidReply(
            f"the answer of {address} is not from this service",
            answer.status,
            request_id=answer.headers.get("x-request-id"),
        ) from error
    answered |= {session.fingerprint} if session.fingerprint else set()
    if len(answered) > 1:
        raise InvalidReply(
            f"several models answered one call (fingerprints {', '.join(sorted(answered))}): the "
            "service was changed during the call, or its replicas differ; call again",
            answer.status,
            request_id=answer.headers.get("x-request-id"),
        )
    return result


def error_of(
    answer: Answer | Lost, call: Call[Any, Any], session: Session, before: HeadscopeError | None
) -> HeadscopeError:
    """Return the error of an attempt without a result."""
    address = session.url + call.path
    if isinstance(answer, Answer):
        return refusal(answer, address)
    if answer.late:
        return late(session, before)
    return NoConnection(f"no reply from {address}: {answer.why}")


def may_succeed(answer: Answer | Lost) -> bool:
    """Return whether a retry may succeed."""
    if isinstance(answer, Answer):
        return answer.status in RETRIED
    return not (answer.begun or answer.late)


def late(session: Session, before: HeadscopeError | None) -> DeadlineExceeded:
    """Return the error of a call whose time has passed, with the previous error."""
    since = f"; before that, {before}" if before else ""
    message = f"no result from {session.url} within {session.timeout:g} seconds{since}"
    return DeadlineExceeded(message, request_id=before.request_id if before else None)


def waiting(error: HeadscopeError, attempt: int, jitter: float) -> float:
    """Return the seconds to wait before the next retry.

    The wait doubles with each retry, and half of it is random, so that clients that were refused
    together do not return together. It is never shorter than `retry-after`.
    """
    most = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * (1 << attempt))
    return (error.retry_after_seconds or 0) + most * (1 + jitter) / 2
