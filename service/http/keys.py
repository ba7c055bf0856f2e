"""API keys, looked up by a keyed digest, so that the time of a look-up reveals nothing of a key."""

from __future__ import annotations

import base64
import binascii

from starlette.types import Scope

from service.errors import Unauthorized
from service.http.key_file import KeyFile, digest_of
from service.settings import Settings
from service.telemetry.probe_paths import PROBE_PATHS

ADMIN = "admin key"
"""Start of the names of keys that may change the served models."""
PAGE_FOLDER = "/dashboard/"
MAX_HEADER_BYTES = 4096
"""Maximum bytes of an Authorization header; a longer one has no key."""


class ApiKeys:
    """Valid keys, stored as digests."""

    def __init__(
        self, keys: str | None, file: KeyFile | None = None, admin: str | None = None
    ) -> None:
        """Store a digest of each key.

        Args:
            keys: keys, separated by commas, with the names `key 0`, `key 1` and so on.
            file: file of further keys, which have names.
            admin: keys that may change the served models, named `admin key 0` and so on. They
                alone do not make other requests need a key.

        """
        self._given = {**_named("key", keys), **_named(ADMIN, admin)}
        self._file = file
        self._needed = keys is not None or file is not None

    def check(self, scope: Scope) -> str:
        """Return the name of a request's key; empty without one where none is needed."""
        name = self._name(scope)
        if not name and self._needed and scope["path"] not in PROBE_PATHS and not _is_page(scope):
            scripted = any(header == b"x-requested-with" for header, _ in scope["headers"])
            raise Unauthorized("a key is needed: Authorization: Bearer KEY", prompts=not scripted)
        return name

    def _name(self, scope: Scope) -> str:
        """Return the name of a request's key, which reveals nothing of it; empty without a key."""
        values = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(values) != 1 or len(values[0]) > MAX_HEADER_BYTES:
            return ""
        digest = digest_of(_key(values[0]))
        named = self._file.names if self._file else {}
        return self._given.get(digest) or named.get(digest, "")


def keys_of(settings: Settings) -> ApiKeys | None:
    """Return the keys of settings; None if they name none."""
    file = KeyFile(settings.keys_file) if settings.keys_file else None
    given = settings.api_keys, file, settings.admin_keys
    return ApiKeys(*given) if any(given) else None


def _named(kind: str, keys: str | None) -> dict[bytes, str]:
    """Return the name of each key by its digest."""
    given = [] if keys is None else keys.split(",")
    digests = [digest_of(key.strip().encode()) for key in given]
    return {digest: f"{kind} {n}" for n, digest in reversed([*enumerate(digests)])}


def _is_page(scope: Scope) -> bool:
    """Return whether a request is for a file of the dashboard, which asks for the key itself."""
    path = scope["path"]
    return scope.get("method") in {"GET", "HEAD"} and (path == "/" or path.startswith(PAGE_FOLDER))


def _key(authorization: bytes) -> bytes:
    """Return the key in a header; empty, which is never a valid key, if there is none."""
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
