"""Clients in a closed loop over raw connections, which know what every reply must be."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

TEXTS = ["a", "the animal", "didn't cross the street", "because it was too tired " * 5]


@dataclass
class Reply:
    """One whole reply."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def closes(self) -> bool:
        return self.headers.get("connection") == "close"


class Connection:
    """One connection; a reply that does not come whole is an error."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Connection:
        self.reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self.local_port = self._writer.get_extra_info("sockname")[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def ask(self, path: str, body: object = None) -> Reply:
        self.send(path, body)
        return await self.read()

    def send(self, path: str, body: object = None) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nhost: headscope\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        self._writer.write(head.encode() + content)

    async def read(self) -> Reply:
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        headers = dict(line.lower().split(": ", 1) for line in lines)
        body = b""
        if headers.get("transfer-encoding") == "chunked":
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readexactly(2)
        else:
            body = await self.reader.readexactly(int(headers["content-length"]))
        return Reply(int(first.split()[1]), headers, body)


@dataclass
class Load:
    """So many clients, each of which asks again as soon as it has its reply."""

    port: int
    expected: dict[str, Any] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    """`right`, `wrong`, `lost`: asked and not answered, `refused`: not even connected."""
    stopping: bool = False

    async def learn(self) -> None:
        """Ask for every text alone."""
        async with Connection(self.port) as connection:
            for text in TEXTS:
                reply = await connection.ask("/encode", {"inputs": text})
                self.expected[text] = json.loads(reply.body)

    @contextlib.asynccontextmanager
    async def running(self, clients: int) -> AsyncIterator[None]:
        """They ask meanwhile; each has its last reply at the end."""
        async with asyncio.TaskGroup() as group:
            for number in range(clients):
                group.create_task(self._client(number))
            yield
            self.stopping = True

    async def _client(self, number: int) -> None:
        while not self.stopping:
            try:
                async with Connection(self.port) as connection:
                    await self._use(connection, number)
            except ConnectionRefusedError:
                self.outcomes["refused"] += 1
                await asyncio.sleep(0.02)

    async def _use(self, connection: Connection, number: int) -> None:
        closes = False
        while not (closes or self.stopping):
            number += 1
            text = TEXTS[number % len(TEXTS)]
            try:
                reply = await connection.ask("/encode", {"inputs": text})
            except (ConnectionError, asyncio.IncompleteReadError):
                self.outcomes["lost"] += 1
                return
            right = reply.status == 200 and json.loads(reply.body) == self.expected[text]
            self.outcomes["right" if right else "wrong"] += 1
            closes = reply.closes
