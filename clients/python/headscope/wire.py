"""What a client does, without doing it: a request to send, a time to wait, several at a time.

The generators of `headscope.exchange` yield these steps; a client carries each out and sends back
what came of it, so that only sending and waiting are written twice, for `Client` and `AsyncClient`.
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
RETRIED = (429, 503)
"""Statuses of what may be answered a little later."""
MAX_DETAIL_CHARACTERS = 1000


@dataclass(frozen=True)
class Send:
    """Send a request; gives an `Answer` or `Lost`."""

    method: str
    path: str
    headers: Mapping[str, str]
    content: bytes | None
    seconds: float
    """Left for its whole reply."""


@dataclass(frozen=True)
class Wait:
    """Do nothing for some seconds; gives nothing."""

    seconds: float


@dataclass(frozen=True)
class Together:
    """Go through several, some at a time; gives their results in order, or raises."""

    exchanges: Sequence[Steps]


Step = Send | Wait | Together
Steps = Generator[Step, Any, Any]


@dataclass(frozen=True)
class Answer:
    """A whole reply."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    content: bytes


@dataclass(frozen=True)
class Lost:
    """No whole reply."""

    why: str
    begun: bool = False
    """Whether some of it had come."""
    late: bool = False
    """Whether the time that was left has passed."""


def refusal(answer: Answer, url: str) -> HeadscopeError:
    """The error that an answer with another status than 200 is."""
    status, (detail, ours) = answer.status, words_of_error(answer)
    kind = KINDS.get(status, Refused if 400 <= status < 500 else Failed)
    message = f"{status}: {detail}"
    if status < 400:
        kind, message = InvalidReply, f"{message} (what {url} answers is not of this service)"
    elif status == 404 and not ours:
        message = f"{message} (is {url} this service?)"
    return kind(
        message,
        status,
        detail=detail,
        request_id=answer.headers.get("x-request-id"),
        retry_after_seconds=retry_after(answer.headers.get("retry-after")),
    )


def words_of_error(answer: Answer) -> tuple[str, bool]:
    """What the service says went wrong; else the status's name, as another program speaks."""
    try:
        found = json.loads(answer.content)
        error = found["detail"] if "detail" in found else found["error"]
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
    """Seconds of a `retry-after` header: a number or a date (RFC 9110, 10.2.3); None of neither."""
    if value is None:
        return None
    if re.fullmatch(r"[0-9]{1,9}", value):
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
