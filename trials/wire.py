"""A client of a few lines: requests as bytes, replies as they come, one at a time a connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

HANG_SECONDS = 120.0
"""A reply that takes longer never comes."""


class Lost(Exception):
    """The connection ended before the reply was complete."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One whole reply."""

    status: int
    head: bytes
    """In lower case."""
    body: bytes

    def header(self, name: str) -> str | None:
        """The value of a header, in lower case."""
        _, found, rest = self.head.partition(f"\r\n{name}: ".encode())
        return rest.partition(b"\r\n")[0].decode() if found else None

    def json(self) -> object:
        """The body."""
        return json.loads(self.body)


def request(path: str, body: object = None, headers: Mapping[str, str] | None = None) -> bytes:
    """A POST of some JSON, or a GET without a body."""
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", "host: trials"]
    if body is not None:
        lines += ["content-type: application/json", f"content-length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


class Connection(asyncio.Protocol):
    """One connection. What comes after a reply, and was not asked for, counts as `surplus`."""

    def __init__(self) -> None:
        self.surplus = 0
        self.open = False
        self._data = bytearray()
        self._waiting: asyncio.Future[Reply] | None = None
        self._head: bytes | None = None
        self._length: int | None = 0

    @classmethod
    async def to(cls, port: int) -> Connection:
        """Connect.

        Raises:
            OSError: nobody listens.

        """
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, "127.0.0.1", port)
        return connection

    async def ask(self, content: bytes) -> Reply:
        """Send a request, wait for its reply.

        Raises:
            Lost: the connection ended first.
            TimeoutError: the reply hangs.

        """
        if not self.open:
            raise Lost
        self._waiting = asyncio.get_running_loop().create_future()
        self.transport.write(content)
        async with asyncio.timeout(HANG_SECONDS):
            return await self._waiting

    def send(self, content: bytes) -> None:
        """Send some bytes; nobody waits for a reply."""
        self.transport.write(content)

    def close(self) -> None:
        """End the connection in order."""
        self.transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.open = cast(asyncio.Transport, transport), True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.open = False
        if self._waiting and not self._waiting.done():
            self._waiting.set_exception(Lost())

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._waiting is None or self._waiting.done():
            self.surplus += len(data)
            return
        if self._head is None and not self._read_head():
            return
        body = self._chunks() if self._length is None else self._whole(self._length)
        if body is not None:
            assert self._head is not None
            reply = Reply(int(self._head[9:12]), self._head, body)
            self._head = None
            self.surplus += len(self._data)
            self._waiting.set_result(reply)

    def _read_head(self) -> bool:
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return False
        self._head = bytes(self._data[: end + 4]).lower()
        del self._data[: end + 4]
        _, found, rest = self._head.partition(b"\r\ncontent-length: ")
        self._length = int(rest.partition(b"\r\n")[0]) if found else None
        return True

    def _whole(self, length: int) -> bytes | None:
        if len(self._data) < length:
            return None
        body = bytes(self._data[:length])
        del self._data[:length]
        return body

    def _chunks(self) -> bytes | None:
        """Only looked at when the last chunk may have come, so that large bodies stay cheap."""
        if not self._data.endswith(b"0\r\n\r\n"):
            return None
        parts, at = [], 0
        while True:
            end = self._data.find(b"\r\n", at)
            size = int(self._data[at:end], 16) if end > at else -1
            if size < 0 or len(self._data) < end + 4 + size:
                return None
            if not size:
                del self._data[: end + 4]
                return b"".join(parts)
            parts.append(bytes(self._data[end + 2 : end + 2 + size]))
            at = end + 4 + size


async def ask(port: int, path: str, body: object = None, **headers: str) -> Reply:
    """One request over a connection of its own; `_` in a header's name stands for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection = await Connection.to(port)
    try:
        return await connection.ask(request(path, body, named))
    finally:
        connection.close()
