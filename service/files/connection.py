"""Requests to a running service, with retries."""

from __future__ import annotations

import http.client
import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from service.inference.fingerprint import FINGERPRINT_HEADER
from service.inference.notices import NO_NOTICES, Notices

TRIES = 8
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 30.0
SILENCE_SECONDS = 120.0
RETRIED = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses of temporary failures: a busy or restarting service, or a proxy without its service."""
SAFETENSORS = "application/vnd.safetensors"


class ServiceFailure(OSError):
    """Failure of the service, or of the connection to it, after all retries."""


class RefusedRequest(Exception):
    """Permanent rejection of a request by the service."""

    def __init__(self, status: int, detail: str, fingerprint: str | None) -> None:
        super().__init__(detail)
        self.status, self.fingerprint = status, fingerprint


class _Reply(NamedTuple):
    """Reply of status 200."""

    content: bytes
    notices: Notices
    fingerprint: str | None


@dataclass(frozen=True)
class Connection:
    """Connection to the service at an address."""

    url: str
    api_key: str | None = None
    sleep: Callable[[float], None] = time.sleep
    notices: list[Notices] = field(default_factory=list, compare=False)
    """Notices of each reply so far; several threads append to the list."""
    _first: dict[str, str | None] = field(default_factory=dict, compare=False)
    """Fingerprint of the first reply to `post` by `FINGERPRINT_HEADER`; None without the header."""

    @property
    def fingerprint(self) -> str | None:
        """Fingerprint that every reply to `post` has had; None without the header."""
        return self._first.get(FINGERPRINT_HEADER)

    def get(self, route: str) -> Any:
        """Return a JSON document of the service."""
        return _parsed(
            self._retried(self._request(route, None, "application/json")).content, self.url
        )

    def post(self, route: str, body: Mapping[str, Any], accept: str) -> bytes:
        """Send a request, and return the body of the reply.

        Raises:
            RefusedRequest: the service rejects the request.
            ServiceFailure: the service does not answer, or another model answers than before.

        """
        try:
            reply = self._retried(self._request(route, json.dumps(body).encode(), accept))
        except RefusedRequest as error:
            if error.fingerprint is not None:  # without it, no model has seen the request
                self._check(error.fingerprint)
            raise
        self._check(reply.fingerprint)
        self.notices.append(reply.notices)
        return reply.content

    def _check(self, fingerprint: str | None) -> None:
        """Raise ServiceFailure if a reply has another fingerprint than the first reply."""
        first = self._first.setdefault(FINGERPRINT_HEADER, fingerprint)
        if fingerprint != first:
            raise ServiceFailure(
                f"{self.url} answers with another model than before: {FINGERPRINT_HEADER} was "
                f"{first or 'absent'}, and is {fingerprint or 'absent'}; the written parts stay; "
                "--restart starts over"
            )

    def _request(self, route: str, body: bytes | None, accept: str) -> urllib.request.Request:
        headers = {"Accept": accept, "Content-Type": "application/json"}
        address = f"{self.url.rstrip('/')}{route}"
        request = urllib.request.Request(address, body, headers)  # noqa: S310 - of http or https
        if self.api_key is not None:
            request.add_unredirected_header("Authorization", f"Bearer {self.api_key}")
        return request

    def _retried(self, request: urllib.request.Request) -> _Reply:
        wait = FIRST_WAIT_SECONDS
        for left in reversed(range(TRIES)):
            asked = 0.0
            try:
                with urllib.request.urlopen(request, timeout=SILENCE_SECONDS) as reply:  # noqa: S310
                    fingerprint = reply.headers.get(FINGERPRINT_HEADER)
                    return _Reply(bytes(reply.read()), _notices(reply.headers), fingerprint)
            except urllib.error.HTTPError as error:
                with error:
                    detail = _detail(error)
                if error.code not in RETRIED:
                    fingerprint = error.headers.get(FINGERPRINT_HEADER)
                    raise RefusedRequest(error.code, detail, fingerprint) from None
                problem, asked = f"{error.code}: {detail}", _retry_after(error)
            except (OSError, http.client.HTTPException) as error:
                problem = f"no reply from {self.url}: {error}"
            if left:
                self.sleep(max(asked, wait * random.uniform(0.5, 1)))  # noqa: S311
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)
        raise ServiceFailure(f"{problem} ({TRIES} tries); the same command resumes the run later")


def _retry_after(error: urllib.error.HTTPError) -> float:
    """Return the seconds of `Retry-After`, capped; 0 if the header is missing or a date."""
    value = error.headers.get("Retry-After", "")
    return min(float(value), 10 * LONGEST_WAIT_SECONDS) if value.isdigit() else 0.0


def _notices(headers: Mapping[str, str]) -> Notices:
    """Return the notices of a reply; none if a proxy has replaced their headers."""
    try:
        return Notices.of_headers(headers)
    except ValueError:
        return NO_NOTICES


def _detail(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read())["detail"])
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        return str(error.reason)


def _parsed(content: bytes, url: str) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        raise ServiceFailure(f"the reply of {url} is not from a Headscope service") from None
