"""Named keys from a file, which may change while the service runs.

A line a key, `name:key`; empty lines and those that begin with `#` say nothing.
"""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path

NAME, KEY = re.compile(r"[A-Za-z0-9._-]{1,64}"), re.compile(r"[!-~]+")
LOOK_SECONDS = 1.0
"""Between two looks at whether the file has changed."""

_log = logging.getLogger("headscope")


def read_keys(path: Path) -> dict[str, str]:
    """Each name's key.

    Raises:
        ValueError: the file cannot be read, holds no key, or one that cannot be used; the message
            names its line and nothing of the key.

    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"keys file {path} cannot be read: {why}") from None
    keys: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        name, colon, key = line.partition(":")
        where = f"keys file {path}, line {number}"
        if not (colon and NAME.fullmatch(name)):
            raise ValueError(f"{where}: name:key is needed, the name of letters, digits, . _ -")
        if not KEY.fullmatch(key):
            raise ValueError(f"{where}: the key is empty, or not of printable ASCII without spaces")
        if name in keys or key in keys.values():
            raise ValueError(f"{where}: this name or key stands on a line before")
        keys[name] = key
    if not keys:
        raise ValueError(f"keys file {path} holds no key")
    return keys


class KeyFile:
    """A file of keys, read again when it has changed; a damaged one is not taken."""

    def __init__(self, path: Path) -> None:
        """Read it.

        Raises:
            ValueError: as `read_keys`.

        """
        self._path = path
        self._stamp = self._stamped()
        self._looked = time.monotonic()
        self.keys = read_keys(path)
        if path.stat().st_mode & 0o004:
            _log.warning("keys file %s can be read by every user of this machine", path)

    def changed(self) -> bool:
        """Whether `keys` are others than at the last call."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return False
        self._looked = now
        stamp = self._stamped()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            keys = read_keys(self._path)
        except ValueError as error:
            _log.error("%s; the keys from before stay", error)
            return False
        self.keys, before = keys, self.keys
        _log.info("keys file %s was read again: %d keys", self._path, len(keys))
        return keys != before

    def _stamped(self) -> tuple[int, ...]:
        """What differs once the file is another; nothing of a file that is gone."""
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_ino, found.st_size, found.st_mtime_ns
