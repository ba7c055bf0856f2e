"""Replies to a fixed list of requests, recorded, and compared with another recording.

    python -m trials.recording record --url http://localhost:8000 --out before.jsonl
    python -m trials.recording record --url … --api-key KEY --out before_keys.jsonl
    python -m trials.recording fake --out tests/recording/replies.jsonl
    python -m trials.recording compare before.jsonl after.jsonl

Requests are sent one after the other, each over a connection of its own. A line of a recording is
a request's name and its replies; what is never the same twice has been replaced, see `RULES`.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import hashlib
import http.client
import io
import json
import re
import socket
import sys
import urllib.parse
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from trials.fuzz import small_checkpoint
from trials.recorded_errors import errors
from trials.recorded_requests import Group, Request, Shape, answered, keys, plain
from trials.servers import serve

HIDDEN = "#"
"""What stands in a recording for something that is never the same twice."""
VOLATILE_HEADERS = {
    "date",
    "retry-after",
    "x-total-time",
    "x-tokenization-time",
    "x-queue-time",
    "x-inference-time",
}
"""Their presence is recorded, their values are not."""
SETS = {"allow"}
"""Headers whose values come in any order."""
WHOLE_BYTES = 2**20
"""Of a body that is longer, hashes are recorded; a block of it is found by its own."""
BLOCK_BYTES = 2**16
WAIT_SECONDS = 300.0
SHOWN = 60
"""Bytes around a difference."""
NEAR = 1e-5
"""How far sums of many terms may be apart from one processor to another, absolute and relative."""
NOT_FAKE: frozenset[Group] = frozenset({"engines", "pages"})
"""What another processor, or another word in the documentation, would answer otherwise."""
FAKE_WHOLE_BYTES = 4200
FAKE_FLAGS = ("--engine", "fake", "--client-timeout-seconds", "2")

FIRST = Request("pages", "first", plain("GET", "/info") + plain("GET", "/metrics"), replies=2)
"""What is served; and metrics count themselves only once they have been told."""

Entry = dict[str, Any]
"""A line of a recording."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What is replaced in some bodies, and why."""

    name: str
    why: str
    of: str
    """Matches the names of the requests whose replies it is for."""
    apply: Callable[[bytes], bytes]


def _value(names: str, value: str = r"[-+.\w]+") -> Callable[[bytes], bytes]:
    """A replacement of the values of some JSON members."""
    pattern = re.compile(rf'"({names})":(?:"[^"]*"|{value})'.encode())
    return lambda body: pattern.sub(rb'"\1":"#"', body)


def _series(body: bytes) -> bytes:
    """Metrics without their values, sorted."""
    lines = (line if line[:1] == b"#" else line.rpartition(b" ")[0] for line in body.splitlines())
    return b"\n".join(sorted({*lines}))


RULES = (
    Rule("metric values", "they count and time", r"^GET /metrics", _series),
    Rule("versions", "of the package", r"/info|/openapi|^/dashboard", _value("version")),
    Rule(
        "artifact",
        "golden tensors and measurements depend on the processor that exported",
        r"^GET /info",
        lambda body: _value("hidden|attention|pooled", r"[-+.\de]+")(
            _value("artifact_sha256")(body)
        ),
    ),
    Rule(
        "differences",
        "between engines, some last bits: `passed` says what matters",
        r"^/verify",
        _value("max_abs_diff|min_cosine"),
    ),
)
"""Beside them, the id that the service gives a request is replaced wherever it stands."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back for a request."""

    status: int
    """0: nothing, the connection was closed."""
    headers: list[tuple[str, str]]
    body: bytes


class _Kept(io.BufferedReader):
    """What comes over a connection; it stays open when the reader of one reply closes it."""

    def makefile(self, _mode: str) -> _Kept:
        """Itself: what `HTTPResponse` wants of a socket."""
        return self

    def close(self) -> None:
        """Nothing: the connection is closed by whoever opened it."""


def exchange(address: tuple[str, int], request: Request) -> list[Reply]:
    """Send a request as it is, read its replies."""
    with socket.create_connection(address, timeout=WAIT_SECONDS) as connection:
        with contextlib.suppress(OSError):  # it was refused before it was sent
            connection.sendall(request.content)
        with connection.makefile("rb", buffering=0) as file:
            kept = _Kept(file)
            return [_read(kept, request.method) for _ in range(request.replies)]


def _read(file: _Kept, method: str) -> Reply:
    response = http.client.HTTPResponse(cast(socket.socket, file), method=method)
    try:
        response.begin()
        return Reply(response.status, response.getheaders(), response.read())
    except (ConnectionError, http.client.HTTPException) as error:
        return Reply(0, [("closed", type(error).__name__)], b"")


def requests(shape: Shape) -> list[Request]:
    """All but the keys', in the order in which they are sent; a name stands for one request.

    Metrics come last, when every request has been counted.
    """
    metrics = Request("pages", "GET /metrics", plain("GET", "/metrics"))
    found = [*answered(shape), *errors(shape), metrics]
    assert len({request.name for request in found}) == len(found)
    return found


def entry(request: Request, replies: Sequence[Reply], whole_bytes: int) -> Entry:
    """A request's line of a recording."""
    return {
        "name": request.name,
        "sent": hashlib.sha256(request.content).hexdigest()[:16],
        "exact": request.exact,
        "replies": [_reply(request, reply, whole_bytes) for reply in replies],
    }


def _reply(request: Request, reply: Reply, whole_bytes: int) -> Entry:
    headers = [(name.lower(), value) for name, value in reply.headers]
    given = dict(headers).get("x-request-id", "").encode()
    body, hidden = reply.body, set(VOLATILE_HEADERS)
    if given and given not in request.content:
        body = body.replace(b'"request_id":"%s"' % given, b'"request_id":"#"')
        hidden.add("x-request-id")
    applied = [rule for rule in RULES if reply.status == 200 and re.search(rule.of, request.name)]
    for rule in applied:
        body = rule.apply(body)
    if applied:
        hidden.add("content-length")
    shown = [(name, HIDDEN if name in hidden else _ordered(name, value)) for name, value in headers]
    return {
        "status": reply.status,
        "headers": sorted(shown, key=itemgetter(0)),
        "rules": [rule.name for rule in applied],
        "body": _written(body, whole_bytes if request.exact else WHOLE_BYTES),
    }


def _ordered(name: str, value: str) -> str:
    return ", ".join(sorted(value.split(", "))) if name in SETS else value


def _written(body: bytes, whole_bytes: int) -> Entry:
    """A body as it is; a long one as hashes."""
    if len(body) > whole_bytes:
        blocks = (body[at : at + BLOCK_BYTES] for at in range(0, len(body), BLOCK_BYTES))
        return {
            "length": len(body),
            "sha256": hashlib.sha256(body).hexdigest(),
            "blocks": "".join(hashlib.sha256(block).hexdigest()[:8] for block in blocks),
            "begins": body[:SHOWN].decode("latin-1"),
        }
    try:
        return {"text": body.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


def record(
    url: str,
    *,
    api_key: str | None = None,
    without: Collection[Group] = (),
    whole_bytes: int = WHOLE_BYTES,
) -> Iterator[Entry]:
    """Send every request to a service.

    Args:
        url: of the service.
        api_key: that it wants; then the requests with and without it are sent, and no others.
        without: groups of requests that are left out.
        whole_bytes: of a body that is longer, hashes are recorded.

    """
    parts = urllib.parse.urlsplit(url)
    address = (str(parts.hostname), int(parts.port or 80))
    if api_key is None:
        info, _ = exchange(address, FIRST)
        found = requests(Shape.of(json.loads(info.body)))
    else:
        found = keys(api_key)
    for request in found:
        if request.group not in without:
            yield entry(request, exchange(address, request), whole_bytes)


def record_fake() -> list[Entry]:
    """The replies over the fake engine, whose numbers are the same on every machine."""

    async def recorded() -> list[Entry]:
        async with serve("--model", str(small_checkpoint()), *FAKE_FLAGS) as service:
            return await asyncio.to_thread(
                lambda: [*record(service.url, without=NOT_FAKE, whole_bytes=FAKE_WHOLE_BYTES)]
            )

    return asyncio.run(recorded())


def write(entries: Iterable[Entry], path: Path) -> int:
    """Write a recording; returns how many requests it has."""
    count = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for item in entries:
            file.write(json.dumps(item, ensure_ascii=False, separators=(",", ":")) + "\n")
            count += 1
    return count


def read(path: Path) -> list[Entry]:
    """A recording."""
    with path.open(encoding="utf-8", newline="\n") as file:
        return [json.loads(line) for line in file]


def compare(old: Sequence[Entry], new: Sequence[Entry], *, near: bool = False) -> list[str]:
    """What is different, a line each.

    Args:
        old: a recording.
        new: another one.
        near: whether numbers that depend on the processor may be a little apart.

    """
    before, after = ({item["name"]: item for item in entries} for entries in (old, new))
    found = [f"{name}: only in the old recording" for name in before if name not in after]
    found += [f"{name}: only in the new recording" for name in after if name not in before]
    for name in before:
        if name in after:
            differences = _entries(before[name], after[name], near=near)
            found += [f"{name}: {difference}" for difference in differences]
    return found


def _entries(old: Entry, new: Entry, *, near: bool) -> Iterator[str]:
    if old["sent"] != new["sent"]:
        yield "the requests themselves differ"
        return
    for one, other in zip(old["replies"], new["replies"], strict=True):
        if one["status"] != other["status"]:
            yield f"status {one['status']} → {other['status']}"
        yield from _headers(one["headers"], other["headers"])
        apart = _bodies(one["body"], other["body"])
        if apart and not (near and not old["exact"] and close(one["body"], other["body"])):
            yield apart


def _headers(old: Sequence[Sequence[str]], new: Sequence[Sequence[str]]) -> Iterator[str]:
    before, after = (_by_name(headers) for headers in (old, new))
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield f"header {name}: {before.get(name)} → {after.get(name)}"


def _by_name(headers: Sequence[Sequence[str]]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in headers:
        found.setdefault(name, []).append(value)
    return found


def _bodies(old: Entry, new: Entry) -> str:
    """Where two bodies differ first; nothing if they do not."""
    if old == new:
        return ""
    one, other = content(old), content(new)
    if one is None or other is None:
        return _hashed(old, new)
    at = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    at = min(len(one), len(other)) if at is None else at
    start = max(0, at - SHOWN // 2)
    shown = (excerpt[start : start + SHOWN] for excerpt in (one, other))
    told = " → ".join(repr(excerpt) for excerpt in shown)
    return f"body, byte {at} of {len(one)} → {len(other)}: {told}"


def _hashed(old: Entry, new: Entry) -> str:
    if "blocks" not in old or "blocks" not in new:
        return "body: long in one recording only, or recorded with other limits"
    sides = ([side["blocks"][at : at + 8] for at in range(0, 10**6, 8)] for side in (old, new))
    block = next(n for n, (a, b) in enumerate(zip(*sides, strict=True)) if a != b)
    return (
        f"body, {old['length']} → {new['length']} bytes: "
        f"the first difference is within {BLOCK_BYTES} bytes from {block * BLOCK_BYTES} on"
    )


def content(body: Entry) -> bytes | None:
    """A recorded body, if it was recorded whole."""
    if "text" in body:
        return str(body["text"]).encode()
    return base64.b64decode(body["base64"]) if "base64" in body else None


def close(old: Entry, new: Entry) -> bool:
    """Whether bodies differ in floats only, and in those by little."""
    one, other = content(old), content(new)
    if one is None or other is None:
        return False
    if "text" in old and "text" in new:
        return _near_texts(one, other)
    return len(one) == len(other) and _near_tensors(one, other)


_FLOAT = re.compile(rb"(-?\d+\.\d+(?:e[-+]?\d+)?)")


def _near_texts(old: bytes, new: bytes) -> bool:
    one, other = _FLOAT.split(old), _FLOAT.split(new)
    if len(one) != len(other) or one[::2] != other[::2]:
        return False
    return _near([float(part) for part in one[1::2]], [float(part) for part in other[1::2]])


def _near_tensors(old: bytes, new: bytes) -> bool:
    head = 8 + int.from_bytes(old[:8], "little")
    if old[:head] != new[:head]:
        return False
    one, other = safetensors.numpy.load(old), safetensors.numpy.load(new)
    return all(_near(one[name], other[name]) for name in one)


def _near(old: npt.ArrayLike, new: npt.ArrayLike) -> bool:
    return bool(np.allclose(old, new, rtol=NEAR, atol=NEAR))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 1 when there is a difference."""
    options = _parser().parse_args(arguments)
    if options.command == "compare":
        found = compare(read(options.old), read(options.new), near=options.near)
        print("\n".join(found) or "no difference")
        return 1 if found else 0
    if options.command == "fake":
        entries: Iterable[Entry] = record_fake()
    else:
        entries = record(
            options.url,
            api_key=options.api_key,
            without=options.without,
            whole_bytes=options.whole_bytes,
        )
    print(f"{write(entries, options.out)} requests")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trials.recording")
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="send every request to a service")
    recording.add_argument("--url", required=True)
    recording.add_argument("--api-key", help="that the service wants: sends the keys' requests")
    recording.add_argument("--without", nargs="*", default=(), choices=get_args(Group))
    recording.add_argument("--whole-bytes", type=int, default=WHOLE_BYTES)
    fake = commands.add_parser("fake", help="start the service over the fake engine, and record it")
    for command in (recording, fake):
        command.add_argument("--out", type=Path, required=True)
    comparing = commands.add_parser("compare", help="say how two recordings differ")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    comparing.add_argument("--near", action="store_true", help="on another processor")
    return parser


if __name__ == "__main__":
    sys.exit(main())
