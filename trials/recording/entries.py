"""The file format of a recording: one JSON object a line, one line a request."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

WHOLE_BYTES = 2**20
"""The longest body that is recorded whole; of a longer one, hashes are."""
BLOCK_BYTES = 2**16
"""Bytes under each of the hashes that locate a difference in a long body."""
HASH_CHARACTERS = 8
"""Hexadecimal digits of a block's hash."""
BEGIN_BYTES = 60
"""Bytes of a long body that are recorded beside its hashes."""

Entry = dict[str, Any]
"""A line of a recording, or a part of one."""


def write(entries: Iterable[Entry], path: Path) -> int:
    """Write a recording; returns the number of its requests."""
    count = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for item in entries:
            file.write(json.dumps(item, ensure_ascii=False, separators=(",", ":")) + "\n")
            count += 1
    return count


def read(path: Path) -> list[Entry]:
    """The entries of a recording."""
    with path.open(encoding="utf-8", newline="\n") as file:
        return [json.loads(line) for line in file]


def body_entry(body: bytes, whole_bytes: int) -> Entry:
    """A body as text, or as base64 where it is none; hashes of a longer one."""
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
    """The bytes of a recorded body; None where only hashes were recorded."""
    if "text" in body:
        return str(body["text"]).encode()
    return base64.b64decode(body["base64"]) if "base64" in body else None
