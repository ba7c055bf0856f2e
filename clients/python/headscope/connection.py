"""Parts that both clients share: all but sending and waiting. Only the clients speak HTTP."""

from __future__ import annotations

import inspect
import math
import re
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

import httpx

from headscope.sending import Retries, Session, Warnings
from headscope.wire import Answer, Lost, Send

CONNECT_SECONDS = 5.0
"""Timeout for connecting to the host, after which the client retries."""
Transport = TypeVar("Transport")
Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)
_KEY = re.compile(r"[!-~]+")
HTTP_ERRORS = (httpx.TransportError, httpx.DecodingError)
"""Exceptions of sending a request and reading its reply."""


class BaseClient(ABC, Generic[Transport, Http]):
    """Client of a service, without sending and waiting."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout: float = 60,
        retries: int | Retries = 5,
        max_in_flight: int = 4,
        transport: Transport | None = None,
    ) -> None:
        """Create a client; no request is sent yet.

        Args:
            url: address of the service, such as `http://localhost:8000`.
            api_key: sent as `Authorization: Bearer …`.
            timeout: seconds for a whole call, with all its requests and retries.
            retries: maximum retries of a request that was temporarily refused or not answered, or
                all rules of retries.
            max_in_flight: maximum number of concurrent requests of one call.
            transport: another httpx transport, such as a Unix socket, or a fake for tests.

        Raises:
            ValueError: `url` is not an http or https address, or a number is out of range.

        """
        policy = retries if isinstance(retries, Retries) else Retries(retries)
        try:
            address = httpx.URL(url)
        except httpx.InvalidURL:
            address = httpx.URL()
        if address.scheme not in ("http", "https") or not address.host:
            raise ValueError(f"{url} is not an address of http or https")
        if not 0 < timeout < math.inf:
            raise ValueError(f"timeout is {timeout}: a number of seconds above 0 is needed")
        if policy.count < 0 or max_in_flight < 1:
            raise ValueError("retries is at least 0, and max_in_flight at least 1")
        if api_key is not None and not _KEY.fullmatch(api_key):
            raise ValueError("api_key is empty, or not of printable ASCII without spaces")
        self._session = Session(url.rstrip("/"), timeout, policy)
        self._max_in_flight = max_in_flight
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._http: Http = self._open(transport, headers)

    @abstractmethod
    def _open(self, transport: Transport | None, headers: dict[str, str]) -> Http:
        """Return the client of HTTP."""

    @property
    def warnings(self) -> Warnings:
        """Counts of texts that were truncated, lack a prompt, or have many unknown tokens."""
        return self._session.warnings

    @property
    def fingerprint(self) -> str | None:
        """Fingerprint of the model that gave the last result; None without the header."""
        return self._session.fingerprint

    @property
    def expect_fingerprint(self) -> str | None:
        """Fingerprint of the model that has to answer; None, the default, for any model.

        Set it to the `fingerprint` of stored vectors: a call that another model would answer raises
        `Refused` with status 409, before anything is computed.
        """
        return self._session.expect_fingerprint

    @expect_fingerprint.setter
    def expect_fingerprint(self, fingerprint: str | None) -> None:
        self._session.expect_fingerprint = fingerprint

    def _request(self, step: Send) -> httpx.Request:
        silence = min(step.silence_seconds, step.seconds)
        return self._http.build_request(
            step.method,
            self._session.url + step.path,
            headers=step.headers,
            content=step.content,
            timeout=httpx.Timeout(silence, connect=min(CONNECT_SECONDS, silence)),
        )


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
