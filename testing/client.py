"""HTTP client of tests, benchmarks and trials, in asyncio; a connection has one request at a time.

Requests are bytes, and replies keep all bytes, so that a test sees everything the server sent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

HANG_SECONDS = 120.0
"""Seconds after which a reply is taken to hang."""
HEAD_END = b"\r\n\r\n"


class Lost(Exception):
    """The end of a connection before its reply was complete."""

    def __init__(self, *, begun: bool = False) -> None:
        super().__init__("the connection ended before the reply was complete")
        self.begun = begun
        """Whether part of the reply had arrived."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Complete reply to a request."""

    status: int
    head: bytes
    """Status line and headers, as received."""
    body: bytes

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Names in lower case and values as received, in the server's order."""
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        pairs = (line.partition(":") for line in lines if line)
        return [(name.lower(), value.lstrip()) for name, _, value in pairs]

    def header(self, name: str) -> str | None:
        """Return the value of a header in lower case; None without the header."""
        _, found, rest = self.head.lower().partition(f"\r\n{name}:".encode())
        return rest.partition(b"\r\n")[0].strip().decode() if found else None

    @property
    def closes(self) -> bool:
        """Whether the server closes the connection after this reply."""
        return self.header("connection") == "close"

    def json(self) -> Any:
        """Return the parsed body."""
        return json.loads(self.body)


def request(path: str, body: object = None, headers: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes of a POST of a body as JSON, or of a GET without a body."""
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", "host: localhost"]
    if body is not None:
        lines += ["content-type: application/json", f"content-length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


class Connection(asyncio.Protocol):
    """Connection to a server on this machine."""

    def __init__(self) -> None:
        self.open = False
        self.surplus = 0
        """Number of unrequested bytes received after a reply."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Future that is done when either side has ended the connection."""
        self._data = bytearray()
        self._waiting: asyncio.Future[Reply] | None = None
        self._head: bytes | None = None
        self._length: int | None = None

    @classmethod
    async def to(cls, port: int, address: str = "127.0.0.1") -> Connection:
        """A new connection from an address of this machine.

        Raises:
            OSError: the port is closed.

        """
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            cls, "127.0.0.1", port, local_addr=(address, 0)
        )
        return connection

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await self.ended

    @property
    def local_port(self) -> int:
        """Port of the client's side."""
        return int(self.transport.get_extra_info("sockname")[1])

    async def ask(self, content: bytes) -> Reply:
        """Send a request and return its reply.

        Raises:
            Lost: the connection ended before the reply was complete.
            TimeoutError: no reply within `HANG_SECONDS`.

        """
        if not self.open:
            raise Lost
        self._waiting = asyncio.get_running_loop().create_future()
        self.transport.write(content)
        async with asyncio.timeout(HANG_SECONDS):
            return await self._waiting

    def send(self, content: bytes) -> None:
        """Send bytes without waiting for a reply."""
        self.transport.write(content)

    def close(self) -> None:
        """Close the connection after sending the bytes written so far."""
        self.transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport of the new connection."""
        self.transport, self.open = cast(asyncio.Transport, transport), True

    def connection_lost(self, _: Exception | None) -> None:
        """Fail the waiting request."""
        self.open = False
        if not self.ended.done():
            self.ended.set_result(None)
        if self._waiting and not self._waiting.done():
            self._waiting.set_exception(Lost(begun=bool(self._head or self._data)))

    def data_received(self, data: bytes) -> None:
        """Add received bytes to the reply, and resolve the waiting request once it is complete."""
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
        end = self._data.find(HEAD_END)
        if end < 0:
            return False
        self._head = bytes(self._data[: end + 4])
        del self._data[: end + 4]
        length = Reply(0, self._head, b"").header("content-length")
        self._length = None if length is None else int(length)
        return True

    def _whole(self, length: int) -> bytes | None:
        if len(self._data) < length:
            return None
        body = bytes(self._data[:length])
        del self._data[:length]
        return body

    def _chunks(self) -> bytes | None:
        """Return the chunks' content; None, without parsing, before the last chunk may be there."""
        if not self._data.endswith(b"0\r\n\r\n"):
            return None
        at = 0
        parts: list[bytes] = []
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
    """Return the reply to a request over its own connection; `_` in a header's name means `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with await Connection.to(port) as connection:
        return await connection.ask(request(path, body, named))
