"""Admission of a request by its head: the host that it names, its API key, and its client.

A malicious page can let its own domain name resolve to this machine (DNS rebinding). Browsers then
treat the page and the service as one origin, but the `Host` header still has the page's name.

Keys are looked up by a keyed digest, so that the time of a look-up reveals nothing of a key. A file
of keys may change while the service runs. Each of its lines has one key, `name:key`; empty lines
and lines that begin with `#` are ignored.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import logging
import re
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from starlette.types import Scope

from service.errors import MisdirectedRequest, Unauthorized
from service.exchange import Exchange
from service.settings import Settings
from service.settings.sources import check_file
from service.telemetry.requests import METRICS_PATH, PROBE_PATHS

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
"""Hosts that resolve to the client's own machine on every machine."""
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::[0-9]*)?")


def canonical(host: str) -> str:
    """Return a host in lower case without a final dot; addresses without brackets, compressed."""
    bare = host.strip("[]").lower().removesuffix(".")
    try:
        return ip_address(bare).compressed
    except ValueError:
        return bare


def allowed_hosts(setting: str | None, host: str) -> frozenset[str] | None:
    """Return the hosts that requests may name; None for any host, as `*` among the setting's names.

    Without a setting, `host`, on which the service listens, is allowed if only this machine can
    reach it, and else any host. The loopback hosts are always allowed.
    """
    hosts = [host] if setting is None else [name.strip() for name in setting.split(",")]
    if "*" in hosts or (setting is None and not is_loopback(host)):
        return None
    return frozenset(map(canonical, (*LOOPBACK, *hosts)))


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host; an empty host is every address."""
    resolved = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM) if host else []
    addresses = [ip_address(str(address[0]).partition("%")[0]) for *_, address in resolved]
    return bool(addresses) and all(address.is_loopback for address in addresses)


_NAME, _KEY = re.compile(r"[A-Za-z0-9._-]{1,64}"), re.compile(r"[!-~]+")
MAX_BYTES = 2**24
"""Maximum bytes of the file, which has at least 100,000 keys of 64 characters then."""
LOOK_SECONDS = 1.0
"""Seconds between two checks of whether the file has changed."""
PAUSE_LINES, PAUSE_SECONDS = 500, 0.0005
"""Lines between two pauses of the parser, in which the event loop gets the GIL."""
_SECRET = secrets.token_bytes(32)
"""Key of this process's digests: callers cannot compute the digest of a key that they send."""

_log = logging.getLogger("headscope")


def digest_of(key: bytes) -> bytes:
    """Return the digest under which this process stores a key."""
    return hashlib.blake2b(key, digest_size=32, key=_SECRET).digest()


def read_names(path: Path) -> dict[bytes, str]:
    """Return the name of each key in a file, by the key's digest."""
    names: dict[bytes, str] = {}
    seen: set[str] = set()
    try:
        check_file(path, MAX_BYTES, "keys file")
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(map(str.strip, file), 1):
                if number % PAUSE_LINES == 0:
                    time.sleep(PAUSE_SECONDS)
                if not line or line.startswith("#"):
                    continue
                name, colon, key = line.partition(":")
                digest, fault = digest_of(key.encode()), ""
                if not (colon and _NAME.fullmatch(name)):
                    fault = "name:key is needed, the name of letters, digits, . _ -"
                elif not _KEY.fullmatch(key):
                    fault = "the key is empty, or not of printable ASCII without spaces"
                elif name in seen or digest in names:
                    fault = "this name or key stands on a line before"
                if fault:
                    raise ValueError(f"keys file {path}, line {number}: {fault}")
                seen.add(name)
                names[digest] = name
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"keys file {path} cannot be read: {why}") from None
    if not names:
        raise ValueError(f"keys file {path} holds no key")
    return names


ADMIN = "admin key"
"""Start of the names of keys that may change the served models."""
PAGE_FOLDER = "/dashboard/"
MAX_HEADER_BYTES = 4096
"""Maximum bytes of an Authorization header; a longer one has no key."""


class ApiKeys:
    """Valid keys, stored as digests; a thread reads a file of keys again when it has changed.

    The old keys are valid until all new keys are read, and remain valid if the new file is invalid.
    """

    def __init__(
        self, keys: str | None, file: Path | None = None, admin: str | None = None
    ) -> None:
        """Store keys, which are separated by commas, and the keys of a file.

        They are named `key 0` and so on, `admin key 0` and so on, and as in the file. Admin keys
        alone do not make other requests need a key.
        """
        self._needed = keys is not None or file is not None
        self._given = {**_named("key", keys), **_named(ADMIN, admin)}
        self.names = self._given
        """Names by the digests of their keys."""
        if file:
            self._stamp = _stamped(file)
            self.names = read_names(file) | self._given
            if file.stat().st_mode & 0o004:
                _log.warning("keys file %s can be read by every user of this machine", file)
            threading.Thread(target=self._watch, args=[file], name="keys", daemon=True).start()

    def check(self, scope: Scope, headers: Mapping[bytes, bytes]) -> str:
        """Return the name of a request's key; empty without a key where none is needed.

        Files of the dashboard need none: the page itself asks for the key.
        """
        name, authorization = "", headers.get(b"authorization", b"")
        if authorization and len(authorization) <= MAX_HEADER_BYTES:
            name = self.names.get(digest_of(_key(authorization)), "")
        path = scope["path"]
        if not name and self._needed and path not in PROBE_PATHS:
            page = path == "/" or path.startswith(PAGE_FOLDER)
            if not page or scope["method"] not in {"GET", "HEAD"}:
                prompts = b"x-requested-with" not in headers
                raise Unauthorized("a key is needed: Authorization: Bearer KEY", prompts=prompts)
        return name

    def refresh(self, file: Path) -> None:
        """Read the file again if it has changed."""
        stamp = _stamped(file)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            names = read_names(file)
        except ValueError as error:
            _log.error("%s; the keys from before stay", error)
        else:
            self.names = names | self._given
            _log.info("keys file %s was read again: %d keys", file, len(names))

    def _watch(self, file: Path) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            self.refresh(file)


def _stamped(file: Path) -> tuple[int, ...]:
    """Return inode, size and time of change of a file; empty without it."""
    with contextlib.suppress(OSError):
        status = file.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns
    return ()


def _named(kind: str, keys: str | None) -> dict[bytes, str]:
    """Return the name of each key by its digest; the first of equal keys counts."""
    given = [] if keys is None else [*enumerate(keys.split(","))]
    return {digest_of(key.strip().encode()): f"{kind} {n}" for n, key in reversed(given)}


def _key(authorization: bytes) -> bytes:
    """Return the key in a header; empty, which is never a valid key, if there is none."""
    scheme, _, given = authorization.partition(b" ")
    if scheme.lower() == b"bearer":
        return given.strip(b" ")
    if scheme.lower() == b"basic":
        with contextlib.suppress(binascii.Error):
            return base64.b64decode(given.strip(b" "), validate=True).partition(b":")[2]
    return b""


@dataclass
class Admission:
    """Checks of the host and the API key of a request, before its body is read."""

    hosts: frozenset[str] | None
    """Allowed hosts, see `canonical`; None for any."""
    keys: ApiKeys | None
    """Valid keys; None if no request needs one."""
    metrics_port: int | None = None
    """Port that answers only metrics and health routes, without a key."""
    _admitted: bytes | None = None
    """The last `Host` header that was admitted: most requests have the same."""

    @classmethod
    def of(cls, settings: Settings) -> Admission:
        """Return the checks of settings; raise if a host or the file of keys is unusable."""
        hosts = allowed_hosts(settings.allowed_hosts, settings.host)
        given = settings.api_keys, settings.keys_file, settings.admin_keys
        return cls(hosts, ApiKeys(*given) if any(given) else None, settings.metrics_port)

    def admit(self, exchange: Exchange[Any, Any]) -> None:
        """Admit a request, and store the names of its client and its key.

        A request without `Host` passes: HTTP/1.0 allows it, and browsers always send `Host`.

        Raises:
            MisdirectedRequest: the request names another host, or the metrics port does not answer
                its path.
            Unauthorized: the path needs a key, and the request has no known key.

        """
        scope, value = exchange.scope, exchange.headers.get(b"host")
        if self.hosts is not None and value not in (None, self._admitted):
            host = _HOST.fullmatch(str(value, "latin-1").strip())
            if host is None or canonical(host[1]) not in self.hosts:
                raise MisdirectedRequest(
                    "this service does not answer for the host of the request; its setting "
                    "allowed_hosts names those that it does"
                )
            self._admitted = value
        if self.metrics_port and scope["server"][1] == self.metrics_port:
            if scope["path"] not in {*PROBE_PATHS, METRICS_PATH}:
                raise MisdirectedRequest("this port answers /metrics and the health routes alone")
            return
        if self.keys:
            exchange.client = exchange.key = self.keys.check(scope, exchange.headers)
        if not exchange.key and scope.get("client"):
            exchange.client = scope["client"][0]
