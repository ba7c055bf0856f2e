"""API keys: compared as SHA-256 digests, in constant time."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from starlette.types import Scope

from service.errors import Unauthorized

OPEN_PATHS = {
    "/health",
    "/health/live",
    "/health/ready",
    "/v2/health/live",
    "/v2/health/ready",
}
"""Paths of probes, which need no key."""
MAX_HEADER_BYTES = 4096
"""Bytes of an Authorization header that is looked at."""


class ApiKeys:
    """The keys that requests must have, kept as digests."""

    def __init__(self, keys: str) -> None:
        """Keep a digest of each key; `keys` are separated by commas."""
        self._digests = [_digest(key.strip().encode()) for key in keys.split(",")]

    def check(self, scope: Scope) -> str:
        """The name of a request's key; refuses one without a key, before its body is read.

        Raises:
            Unauthorized: the path needs a key, and the request has none that is known.

        """
        name = self._name(scope)
        if not name and scope["path"] not in OPEN_PATHS:
            raise Unauthorized("a key is needed: Authorization: Bearer KEY")
        return name

    def _name(self, scope: Scope) -> str:
        """A name that tells keys apart and nothing of them; empty without a known key."""
        found = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(found) != 1 or len(found[0]) > MAX_HEADER_BYTES:
            return ""
        digest = _digest(_key(found[0]))
        known = [hmac.compare_digest(digest, each) for each in self._digests]
        return f"key {known.index(True)}" if any(known) else ""


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
