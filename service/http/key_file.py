"""Named API keys from a file, which may change while the service runs.

Each line has one key, `name:key`; empty lines and lines that begin with `#` are ignored.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import threading
import time
import weakref
from pathlib import Path

from service.settings.config_file import check_file

NAME, KEY = re.compile(r"[A-Za-z0-9._-]{1,64}"), re.compile(r"[!-~]+")
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
                where = f"keys file {path}, line {number}"
                name, digest = _parsed(line, where)
                if name in seen or digest in names:
                    raise ValueError(f"{where}: this name or key stands on a line before")
                seen.add(name)
                names[digest] = name
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"keys file {path} cannot be read: {why}") from None
    if not names:
        raise ValueError(f"keys file {path} holds no key")
    return names


def _parsed(line: str, where: str) -> tuple[str, bytes]:
    """Return the name on a line, and the digest of its key."""
    name, colon, key = line.partition(":")
    if not (colon and NAME.fullmatch(name)):
        raise ValueError(f"{where}: name:key is needed, the name of letters, digits, . _ -")
    if not KEY.fullmatch(key):
        raise ValueError(f"{where}: the key is empty, or not of printable ASCII without spaces")
    return name, digest_of(key.encode())


class KeyFile:
    """File of keys, which a thread reads again when it has changed.

    The old keys are valid until all new keys are read, and remain valid if the new file is invalid.
    """

    def __init__(self, path: Path) -> None:
        """Read the file."""
        self._path = path
        self._stamp = self._stamped()
        self.names = read_names(path)
        """Names by the digests of their keys."""
        if path.stat().st_mode & 0o004:
            _log.warning("keys file %s can be read by every user of this machine", path)
        threading.Thread(target=_watch, args=[weakref.ref(self)], daemon=True).start()

    def refresh(self) -> None:
        """Read the file again if it has changed."""
        stamp = self._stamped()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self.names = read_names(self._path)
        except ValueError as error:
            _log.error("%s; the keys from before stay", error)
        else:
            _log.info("keys file %s was read again: %d keys", self._path, len(self.names))

    def _stamped(self) -> tuple[int, ...]:
        """Return inode, size and time of change of the file; empty without a file."""
        try:
            status = self._path.stat()
        except OSError:
            return ()
        return status.st_ino, status.st_size, status.st_mtime_ns


def _watch(reference: weakref.ref[KeyFile]) -> None:
    """Refresh a file of keys every `LOOK_SECONDS` until it is garbage-collected."""
    while True:
        time.sleep(LOOK_SECONDS)
        file = reference()
        if file is None:
            return
        file.refresh()
        del file
