"""API keys: looked up by a keyed digest, so that the time of a look-up says nothing of a key."""

from __future__ import annotations

import base64
import binascii

from starlette.types import Scope

from service.errors import Unauthorized
from service.http.key_file import KeyFile, digest_of
from service.telemetry.probe_paths import PROBE_PATHS

PAGE_FOLDER = "/dashboard/"
MAX_HEADER_BYTES = 4096
"""Bytes of an Authorization header that is looked at."""


class ApiKeys:
    """The keys that requests must have, kept as digests."""

    def __init__(self, keys: str | None, file: KeyFile | None = None) -> None:
        """Keep a digest of each key.

        Args:
            keys: separated by commas; they are called `key 0`, `key 1` and so on.
            file: of further ones, which have names.

        """
        given = [] if keys is None else keys.split(",")
        digests = [digest_of(key.strip().encode()) for key in given]
        self._given = {digest: f"key {n}" for n, digest in reversed([*enumerate(digests)])}
        self._file = file

    def check(self, scope: Scope) -> str:
        """The name of a request's key; refuses one without a key, before its body is read.

        Raises:
            Unauthorized: the path needs a key, and the request has none that is known.

        """
        name = self._name(scope)
        if not name and scope["path"] not in PROBE_PATHS and not _is_page(scope):
            scripted = any(header == b"x-requested-with" for header, _ in scope["headers"])
            raise Unauthorized("a key is needed: Authorization: Bearer KEY", prompts=not scripted)
        return name

    def _name(self, scope: Scope) -> str:
        """A name that tells keys apart and nothing of them; empty without a known key."""
        found = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(found) != 1 or len(found[0]) > MAX_HEADER_BYTES:
            return ""
        digest = digest_of(_key(found[0]))
        named = self._file.names if self._file else {}
        return self._given.get(digest) or named.get(digest, "")


def _is_page(scope: Scope) -> bool:
    """Whether a file of the dashboard is asked for: a page that asks for the key itself."""
    path = scope["path"]
    return scope.get("method") in {"GET", "HEAD"} and (path == "/" or path.startswith(PAGE_FOLDER))


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
