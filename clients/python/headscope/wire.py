"""Steps of a client as data: a request to send, a time to wait, several exchanges at once.

The generators of `headscope.exchange` yield these steps. A client executes each step and sends back
its outcome, so that only sending and waiting are written twice, for `Client` and `AsyncClient`.
"""

from __future__ import annotations

import email.utils
import http
import json
import re
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headscope.errors import (
    Failed,
    HeadscopeError,
    InvalidReply,
    NotFound,
    Overloaded,
    Refused,
    TooLarge,
    Unauthorized,
    Unavailable,
)

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
JSON = "application/json"
MAX_DETAIL_CHARACTERS = 1000


@dataclass(frozen=True)
class Send:
    """Step that sends a request; its outcome is an `Answer` or `Lost`."""

    method: str
    path: str
    headers: Mapping[str, str]
    content: bytes | None
    seconds: float
    """Remaining seconds for the whole reply."""
    silence_seconds: float
    """Seconds without a byte after which the connection counts as ended."""


@dataclass(frozen=True)
class Wait:
    """Step that waits for some seconds; it has no outcome."""

    seconds: float


@dataclass(frozen=True)
class Together:
    """Step that runs several exchanges concurrently; its outcome is their results in order."""

    exchanges: Sequence[Steps]


Step = Send | Wait | Together
Steps = Generator[Step, Any, Any]


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
        retry_after_seconds=retry_after(answer.headers.get("retry-after")),
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


def retry_after(value: str | None) -> float | None:
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
