"""Keys that requests must have, where the settings name some."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import Unauthorized
from service.http.problems import problem_response

OPEN = {"/health", "/health/live", "/health/ready"}
"""Probes have no key."""
MOST_BYTES = 4096
"""Of an Authorization header that is looked at."""


class KeyMiddleware:
    """Lets a request through that has one of the keys, before its body is read."""

    def __init__(self, app: ASGIApp, keys: str) -> None:
        """Keep a digest of each.

        Args:
            app: what is behind the keys.
            keys: separated by commas.

        """
        self.app = app
        self._digests = [_digest(key.strip().encode()) for key in keys.split(",")]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        if scope["type"] != "http" or scope["path"] in OPEN or self._admits(scope):
            await self.app(scope, receive, send)
            return
        error = Unauthorized("a key is needed: Authorization: Bearer KEY")
        await problem_response(error, scope["state"]["request_id"])(scope, receive, send)

    def _admits(self, scope: Scope) -> bool:
        found = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(found) != 1 or len(found[0]) > MOST_BYTES:
            return False
        digest = _digest(_key(found[0]))
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0


def _key(authorization: bytes) -> bytes:
    """The key of a header; empty, which no key is, if it has none."""
    scheme, _, credentials = authorization.partition(b" ")
    if scheme.lower() == b"bearer":
        return credentials.strip(b" ")
    if scheme.lower() == b"basic":
        try:
            decoded = base64.b64decode(credentials.strip(b" "), validate=True)
        except binascii.Error:
            return b""
        return decoded.partition(b":")[2]
    return b""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
