"""File format of a recording: a JSON object a line, a line a request."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

WHOLE_BYTES = 2**20
"""Maximum length of a body that is recorded whole; a longer body is recorded as hashes."""
BLOCK_BYTES = 2**16
"""Bytes of each block whose hash locates a difference in a long body."""
HASH_CHARACTERS = 8
"""Hexadecimal digits of a block's hash."""
BEGIN_BYTES = 60
"""Bytes at the beginning of a long body that are recorded beside its hashes."""

Entry = dict[str, Any]
"""Line of a recording, or part of a line."""


def write(entries: Iterable[Entry], path: Path) -> int:
    """Write a recording, and return the number of its requests."""
    count = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for item in entries:
            file.write(json.dumps(item, ensure_ascii=False, separators=(",", ":")) + "\n")
            count += 1
    return count


def read(path: Path) -> list[Entry]:
    """Return the entries of a recording."""
    with path.open(encoding="utf-8", newline="\n") as file:
        return [json.loads(line) for line in file]


def body_entry(body: bytes, whole_bytes: int) -> Entry:
    """Return a body as text, as base64 if it is not UTF-8, or as hashes if it is longer."""
    if len(body) > whole_bytes:
        blocks = (body[at : at + BLOCK_BYTES] for at in range(0, len(body), BLOCK_BYTES))
        return {
            "length": len(body),
            "sha256": hashlib.sha256(body).hexdigest(),
            "blocks": "".join(
                hashlib.sha256(block).hexdigest()[:HASH_CHARACTERS] for block in blocks
            ),
            "begins": body[:BEGIN_BYTES].decode("latin-1"),
        }
    try:
        return {"text": body.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


def content(body: Entry) -> bytes | None:
    """Return the bytes of a recorded body; None if only hashes were recorded."""
    if "text" in body:
        return str(body["text"]).encode()
    return base64.b64decode(body["base64"]) if "base64" in body else None
