"""Parts that both clients share: all but sending and waiting."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from headscope.exchange import Session
from headscope.wire import Answer, Lost, Send

CONNECT_SECONDS = 5.0
"""Timeout for connecting to the host, after which the client retries."""
_KEY = re.compile(r"[!-~]+")
HTTP_ERRORS = (httpx.TransportError, httpx.DecodingError)
"""Exceptions of sending a request and reading its reply."""


@dataclass(frozen=True)
class Settings:
    """Arguments of a client.

    Raises:
        ValueError: `url` is not an http or https address, or a number is out of range.

    """

    url: str
    api_key: str | None
    timeout: float
    retries: int
    max_in_flight: int

    def __post_init__(self) -> None:
        try:
            address = httpx.URL(self.url)
        except httpx.InvalidURL:
            address = httpx.URL()
        if address.scheme not in ("http", "https") or not address.host:
            raise ValueError(f"{self.url} is not an address of http or https")
        if not 0 < self.timeout < math.inf:
            raise ValueError(f"timeout is {self.timeout}: a number of seconds above 0 is needed")
        if self.retries < 0 or self.max_in_flight < 1:
            raise ValueError("retries is at least 0, and max_in_flight at least 1")
        if self.api_key is not None and not _KEY.fullmatch(self.api_key):
            raise ValueError("api_key is empty, or not of printable ASCII without spaces")


class Connection:
    """Session, headers and limits for the service of a client."""

    def __init__(self, settings: Settings) -> None:
        self.session = Session(settings.url.rstrip("/"), settings.timeout, settings.retries)
        key = settings.api_key
        self.headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self.max_in_flight = settings.max_in_flight

    def options(self, step: Send) -> dict[str, Any]:
        """Return the arguments of an httpx client's `build_request`."""
        connect = min(CONNECT_SECONDS, step.seconds)
        return {
            "method": step.method,
            "url": self.session.url + step.path,
            "headers": step.headers,
            "content": step.content,
            "timeout": httpx.Timeout(step.seconds, connect=connect),
        }


def answer_of(response: httpx.Response, content: bytes) -> Answer:
    """Return a reply that was read completely."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status_code, headers, content)


def lost(error: Exception, *, begun: bool) -> Lost:
    """Return the outcome of a request without a complete reply."""
    slow = isinstance(error, httpx.TimeoutException | TimeoutError)
    late = slow and not isinstance(error, httpx.ConnectTimeout)
    return Lost(str(error) or type(error).__name__, begun, late)


def with_signature(method: Callable[..., Any], call: Callable[..., Any]) -> None:
    """Give a method the parameters of its call, for `help` and notebooks."""
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    signature = inspect.signature(call)
    parameters = [own, *signature.parameters.values()]
    own_signature = signature.replace(
        parameters=parameters, return_annotation=inspect.Signature.empty
    )
    method.__dict__["__signature__"] = own_signature
