"""Recording of the service over the fake engine, whose numbers are equal on every machine.

Each request is sent over a connection of its own, one after another. A line of the recording is a
JSON object with a request's name and its replies, without the values that differ between runs.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from testing.blocking import RawConnection
from testing.client import Reply
from testing.process import Service
from trials.fuzz import small_checkpoint
from trials.recording.requests import Request, Shape, plain, requests

WAIT_SECONDS = 300.0
FLAGS = (
    *("--log-level", "error", "--engine", "fake", "--client-timeout-seconds", "2"),
    *("--allowed-hosts", "*"),  # recorded requests name other hosts
)
EXACT_BYTES, WHOLE_BYTES = 4200, 2**20
"""Maximum length of a body that is recorded whole, of exact replies and of others; a longer body is
recorded as hashes."""
BLOCK_BYTES = 2**16
"""Bytes of each block whose hash locates a difference in a long body."""
HASH_CHARACTERS = 8
"""Hexadecimal digits of a block's hash."""
BEGIN_BYTES = 60
"""Bytes at the beginning of a long body that are recorded beside its hashes."""
HIDDEN = "#"
"""Replacement of a value that differs between runs."""
VOLATILE_HEADERS = {
    "date",
    "retry-after",
    "x-total-time",
    "x-tokenization-time",
    "x-queue-time",
    "x-inference-time",
    "x-model-fingerprint",
}
"""Headers whose presence is recorded, but not their values."""
DIFFERENCES = re.compile(rb'"(max_abs_diff|min_cosine)":[-+.\w]+')
"""Values of /verify that differ in last bits; `passed` is the result."""

Entry = dict[str, Any]
"""Line of a recording, or part of a line."""


def write(entries: Iterable[Entry], path: Path) -> int:
    """Write a recording, and return the number of its requests."""
    lines = [json.dumps(item, ensure_ascii=False, separators=(",", ":")) for item in entries]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return len(lines)


def read(path: Path) -> list[Entry]:
    """Return the entries of a recording."""
    with path.open(encoding="utf-8", newline="\n") as file:
        return [json.loads(line) for line in file]


def record() -> list[Entry]:
    """Send every request, and return the entries of the recording."""
    with Service.of_headscope("--model", str(small_checkpoint()), *FLAGS) as service:
        service.wait_until_ready()
        (info,) = exchange(service.port, Request("info", plain("GET", "/info")))
        return [
            {
                "name": request.name,
                "sent": hashlib.sha256(request.content).hexdigest()[:16],
                "exact": request.exact,
                "replies": [
                    reply_entry(request, reply) for reply in exchange(service.port, request)
                ],
            }
            for request in requests(Shape.of(info.json()))
        ]


def exchange(port: int, request: Request) -> list[Reply]:
    """Return the replies to a request; an incomplete reply has status 0."""
    with RawConnection(("127.0.0.1", port), WAIT_SECONDS) as connection:
        connection.send(request.content)
        return [_receive(connection) for _ in range(request.replies)]


def _receive(connection: RawConnection) -> Reply:
    try:
        return connection.receive()
    except (ConnectionError, http.client.HTTPException) as error:
        return Reply(0, f"HTTP/1.1 0\r\nclosed: {type(error).__name__}\r\n\r\n".encode(), b"")


def reply_entry(request: Request, reply: Reply) -> Entry:
    """Return a reply's part of a line."""
    generated = dict(reply.headers).get("x-request-id", "").encode()
    body, hidden, rules = reply.body, set(VOLATILE_HEADERS), list[str]()
    if generated and generated not in request.content:
        body = body.replace(b'"request_id":"%s"' % generated, b'"request_id":"#"')
        hidden.add("x-request-id")
    if reply.status == 200 and request.name.startswith("/verify"):
        body = DIFFERENCES.sub(rb'"\1":"#"', body)
        hidden.add("content-length")
        rules.append("differences")
    headers = [
        (name, HIDDEN if name in hidden else _ordered(name, value)) for name, value in reply.headers
    ]
    return {
        "status": reply.status,
        "headers": sorted(headers, key=itemgetter(0)),
        "rules": rules,
        "body": body_entry(body, EXACT_BYTES if request.exact else WHOLE_BYTES),
    }


def _ordered(name: str, value: str) -> str:
    """Return a header's value; of a set of methods, which have any order, sorted."""
    return ", ".join(sorted(value.split(", "))) if name == "allow" else value


def body_entry(body: bytes, whole_bytes: int) -> Entry:
    """Return a body as text, as base64 if it is not UTF-8, or as hashes if it is longer."""
    if len(body) > whole_bytes:
        blocks = (body[at : at + BLOCK_BYTES] for at in range(0, len(body), BLOCK_BYTES))
        hashes = (hashlib.sha256(block).hexdigest()[:HASH_CHARACTERS] for block in blocks)
        return {
            "length": len(body),
            "sha256": hashlib.sha256(body).hexdigest(),
            "blocks": "".join(hashes),
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


EXCERPT_BYTES = 60
"""Bytes shown around a difference."""
NEAR = 1e-5
"""Tolerance, absolute and relative, for sums of many terms on different processors."""
Headers = Sequence[tuple[str, str]]


def compare(old: Sequence[Entry], new: Sequence[Entry]) -> list[str]:
    """Return descriptions of the differences of two recordings, a line each.

    Numbers of entries that are not exact may differ within `NEAR`.
    """
    before, after = ({item["name"]: item for item in entries} for entries in (old, new))
    lines = [f"{name}: only in the old recording" for name in before if name not in after]
    lines += [f"{name}: only in the new recording" for name in after if name not in before]
    for name in before:
        if name in after:
            lines += [f"{name}: {found}" for found in _entries(before[name], after[name])]
    return lines


def _entries(old: Entry, new: Entry) -> Iterator[str]:
    if old["sent"] != new["sent"]:
        yield "the requests themselves differ"
        return
    for one, other in zip(old["replies"], new["replies"], strict=True):
        if one["status"] != other["status"]:
            yield f"status {one['status']} → {other['status']}"
        apart = _bodies(one["body"], other["body"])
        near = bool(apart) and not old["exact"] and close(one["body"], other["body"])
        before, after = (_headers(reply, without_length=near) for reply in (one, other))
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                yield f"header {name}: {before.get(name)} → {after.get(name)}"
        if apart and not near:
            yield apart


def _headers(reply: Entry, *, without_length: bool) -> Mapping[str, list[str]]:
    """Return values by name; the length of a body depends on the numbers' last bits."""
    length = str(len(content(reply["body"]) or b"")) if without_length else None
    values: dict[str, list[str]] = {}
    for name, value in reply["headers"]:
        if (name, value) != ("content-length", length):
            values.setdefault(name, []).append(value)
    return values


def _bodies(old: Entry, new: Entry) -> str:
    """Return a description of the first difference of two bodies; empty if they are equal."""
    if old == new:
        return ""
    one, other = content(old), content(new)
    if one is None or other is None:
        if "blocks" not in old or "blocks" not in new:
            return "body: long in one recording only, or recorded with other limits"
        block = _first_difference(old["blocks"], new["blocks"]) // HASH_CHARACTERS
        return (
            f"body, {old['length']} → {new['length']} bytes: "
            f"the first difference is within {BLOCK_BYTES} bytes from {block * BLOCK_BYTES} on"
        )
    at = _first_difference(one, other)
    start = max(0, at - EXCERPT_BYTES // 2)
    excerpts = (body[start : start + EXCERPT_BYTES] for body in (one, other))
    shown = " → ".join(repr(excerpt) for excerpt in excerpts)
    return f"body, byte {at} of {len(one)} → {len(other)}: {shown}"


def _first_difference(one: str | bytes, other: str | bytes) -> int:
    """Return the first position at which two sequences differ, or the shorter one's length."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


_FLOAT = re.compile(rb"(-?\d+\.\d+(?:e[-+]?\d+)?)")


def close(old: Entry, new: Entry) -> bool:
    """Return whether two bodies are equal except for floats within `NEAR` of each other."""
    one, other = content(old), content(new)
    if one is None or other is None:
        return False
    if "text" in old and "text" in new:
        before, after = _FLOAT.split(one), _FLOAT.split(other)
        same = len(before) == len(after) and before[::2] == after[::2]
        return same and _near([float(n) for n in before[1::2]], [float(n) for n in after[1::2]])
    head = 8 + int.from_bytes(one[:8], "little")
    if len(one) != len(other) or one[:head] != other[:head]:
        return False
    tensors, others = safetensors.numpy.load(one), safetensors.numpy.load(other)
    return all(_near(tensors[name], others[name]) for name in tensors)


def _near(old: npt.ArrayLike, new: npt.ArrayLike) -> bool:
    return bool(np.allclose(old, new, rtol=NEAR, atol=NEAR))
