"""Requests of a run to a service, by the client library, which is in the extra `client`."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from headscope import Client, HeadscopeError, NoConnection, Retries
from headscope.sending import JSON, Answer, words_of_error
from service.files.options import UsageError
from service.inference.fingerprint import FINGERPRINT_HEADER
from service.inference.timings import Warnings

PATIENT = Retries(
    count=7,
    statuses=frozenset({408, 429, 500, 502, 503, 504}),
    first_wait_seconds=0.5,
    longest_wait_seconds=30.0,
    longest_retry_after_seconds=300.0,
    silence_seconds=120.0,
    incomplete=True,
)
"""Retries of a run that lasts for hours, whose service may restart, also behind a proxy."""
ONCE = Retries(count=0)
"""Retries of a command of a person, who sees its error at once."""
REQUEST_SECONDS = 24 * 3600.0
"""Timeout of a request; its retries end much earlier."""
SAFETENSORS = "application/vnd.safetensors"


class ServiceFailure(OSError):
    """Failure of the service, or of the connection to it, after all retries."""


class RefusedRequest(Exception):
    """Permanent rejection of a request by the service."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Connection:
    """Connection to the service at an address, for several threads."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        retries: Retries = PATIENT,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Create a connection; no request is sent yet.

        `say` is called once, with a line, when the service does not answer.

        Raises:
            UsageError: the address or the key is invalid.

        """
        self.url, self._say, self._said = url, say, threading.Lock()
        self._retries = retries = replace(retries, on_retry=self._before_retry)
        try:
            self._client = Client(url, api_key=api_key, timeout=REQUEST_SECONDS, retries=retries)
        except ValueError as error:
            raise UsageError(str(error)) from None
        self.warnings: list[Warnings] = []
        """Warnings of each reply so far."""
        self._first: dict[str, str | None] = {}

    def close(self) -> None:
        """Close the sockets."""
        self._client.close()

    @property
    def fingerprint(self) -> str | None:
        """Fingerprint that every reply to `post` has had; None without the header."""
        return self._first.get(FINGERPRINT_HEADER)

    def get(self, route: str) -> Any:
        """Return a JSON document of the service."""
        try:
            return json.loads(self._accepted(self._answer(route, None, JSON)))
        except ValueError:
            url = self.url
            raise ServiceFailure(f"the reply of {url} is not from a Headscope service") from None

    def post(
        self, route: str, body: Mapping[str, object], accept: str, *, repeated: bool = False
    ) -> bytes:
        """Send a request, and return the body of the reply.

        Warnings about texts that were sent before, as `repeated` says, do not count again.

        Raises:
            RefusedRequest: the service rejects the request.
            ServiceFailure: the service does not answer, or another model answers than before.

        """
        answer = self._answer(route, body, accept)
        fingerprint = answer.headers.get(FINGERPRINT_HEADER)
        if fingerprint is not None or answer.status < 300:  # else no model has seen the request
            self._check(fingerprint)
        content = self._accepted(answer)
        if not repeated:
            self.warnings.append(Warnings.of_headers(answer.headers))
        return content

    def _answer(self, route: str, body: Mapping[str, object] | None, accept: str) -> Answer:
        """Return the last answer to a request; its status is none that is retried."""
        try:
            answer = self._client.request(route, body, accept=accept)
        except HeadscopeError as error:
            problem = str(error)
        else:
            if answer.status not in self._retries.statuses:
                return answer
            problem = f"{answer.status}: {words_of_error(answer)[0]}"
        tries = 1 + self._retries.count
        raise ServiceFailure(f"{problem} ({tries} tries); the same command resumes the run later")

    def _before_retry(self, error: HeadscopeError) -> None:
        """Report the first attempt without a reply; a busy service is retried silently."""
        if isinstance(error, NoConnection) and self._said.acquire(blocking=False):
            count = self._retries.count
            seconds = sum(self._retries.wait(error, attempt, 0.5) for attempt in range(count))
            self._say(f"{error}; retrying {count} times, for about {seconds:.0f} s")

    def _accepted(self, answer: Answer) -> bytes:
        if answer.status >= 300:
            raise RefusedRequest(answer.status, words_of_error(answer)[0])
        return answer.content

    def _check(self, fingerprint: str | None) -> None:
        """Raise ServiceFailure if a reply has another fingerprint than the first reply.

        Later requests expect the first one, so that another model refuses before it computes.
        """
        first = self._first.setdefault(FINGERPRINT_HEADER, fingerprint)
        self._client.expect_fingerprint = first
        if fingerprint != first:
            raise ServiceFailure(
                f"{self.url} answers with another model than before: {FINGERPRINT_HEADER} was "
                f"{first or 'absent'}, and is {fingerprint or 'absent'}; the written parts stay; "
                "--restart starts over"
            )
