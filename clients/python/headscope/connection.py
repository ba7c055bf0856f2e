"""Parts that both clients share: all but sending and waiting. Only the clients speak HTTP."""

from __future__ import annotations

import inspect
import math
import re
import ssl
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from headscope.notices import Notices
from headscope.sending import Request, Retries, Session, answered
from headscope.wire import JSON, Answer, Lost, Send, Step

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
    retries: int | Retries
    max_in_flight: int

    @property
    def policy(self) -> Retries:
        """Rules of the retries; a number is a limit of the default rules."""
        return self.retries if isinstance(self.retries, Retries) else Retries(self.retries)

    def __post_init__(self) -> None:
        try:
            address = httpx.URL(self.url)
        except httpx.InvalidURL:
            address = httpx.URL()
        if address.scheme not in ("http", "https") or not address.host:
            raise ValueError(f"{self.url} is not an address of http or https")
        if not 0 < self.timeout < math.inf:
            raise ValueError(f"timeout is {self.timeout}: a number of seconds above 0 is needed")
        if self.policy.count < 0 or self.max_in_flight < 1:
            raise ValueError("retries is at least 0, and max_in_flight at least 1")
        if self.api_key is not None and not _KEY.fullmatch(self.api_key):
            raise ValueError("api_key is empty, or not of printable ASCII without spaces")


class Connection:
    """Session, headers and limits for the service of a client."""

    def __init__(self, settings: Settings) -> None:
        self.session = Session(settings.url.rstrip("/"), settings.timeout, settings.policy)
        key = settings.api_key
        self.headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self.max_in_flight = settings.max_in_flight

    def options(self, step: Send) -> dict[str, Any]:
        """Return the arguments of an httpx client's `build_request`."""
        silence = min(step.silence_seconds, step.seconds)
        return {
            "method": step.method,
            "url": self.session.url + step.path,
            "headers": step.headers,
            "content": step.content,
            "timeout": httpx.Timeout(silence, connect=min(CONNECT_SECONDS, silence)),
        }


class BaseClient:
    """Parts of a client that need no HTTP."""

    _connection: Connection

    @property
    def notices(self) -> Notices:
        """Counts of texts that were truncated, lack a prompt, or have many unknown tokens."""
        return self._connection.session.notices

    @property
    def fingerprint(self) -> str | None:
        """Fingerprint of the model that gave the last result; None without the header."""
        return self._connection.session.fingerprint


def steps_of(
    session: Session, path: str, body: Mapping[str, object] | None, accept: str = JSON
) -> Generator[Step, Answer | Lost, Answer]:
    """Return the steps of a request of a client's user."""
    return answered(Request.of(path, body, accept), session, session.deadline)


def trusted(url: str) -> ssl.SSLContext | bool:
    """Return the certificates that an httpx client trusts: certifi's, and for HTTPS the system's.

    A company's own certificate authority is among the system's. Loading them takes 50 ms.
    """
    if not url.startswith("https:"):
        return True
    context = httpx.create_ssl_context()
    context.load_default_certs()
    return context


def answer_of(response: httpx.Response, content: bytes) -> Answer:
    """Return a reply that was read completely."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status_code, headers, content)


def lost(error: Exception, step: Send, *, begun: bool) -> Lost:
    """Return the outcome of a request without a complete reply.

    Args:
        error: one of `HTTP_ERRORS`, or a TimeoutError after the seconds of the step.
        step: step that sent the request.
        begun: whether a part of the reply had arrived.

    """
    silent = isinstance(error, httpx.TimeoutException) and not isinstance(
        error, httpx.ConnectTimeout
    )
    late = isinstance(error, TimeoutError) or (silent and step.silence_seconds >= step.seconds)
    return Lost(str(error) or type(error).__name__, begun, late)


def with_signature(method: Callable[..., object], call: Callable[..., object]) -> None:
    """Give a method the parameters of its call, for `help` and notebooks."""
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    signature = inspect.signature(call)
    parameters = [own, *signature.parameters.values()]
    own_signature = signature.replace(
        parameters=parameters, return_annotation=inspect.Signature.empty
    )
    method.__dict__["__signature__"] = own_signature
