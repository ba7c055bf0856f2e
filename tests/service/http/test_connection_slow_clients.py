"""Stalled clients are disconnected in time, do not affect others, and leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging.handlers
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from model.artifact.manifest import Artifact
from service.api.dialects import error_response
from service.engines.fake import FakeEngine
from service.http.connection import TAKEN_BYTES, HttpProtocol
from service.models.state import state_of
from testing.raw_http import GET, LENGTH, POST
from tests.service.harness import CONFIG, listening
from tests.service.http.wire import counted, eventually

pytestmark = pytest.mark.slow

SECONDS = 0.5
"""Client timeout of the server."""
LATE = 60.0
"""Seconds that suffice on a busy machine."""
LONG = "a " * 510


@pytest.fixture(scope="module")
def served(artifact: Artifact) -> Iterator[tuple[FastAPI, int]]:
    engine = FakeEngine(CONFIG)
    settings: dict[str, Any] = {"max_bytes_in_flight": 2**40, "max_queue_tokens": 2**40}
    settings |= dict.fromkeys(("queue_timeout_seconds", "queue_target_seconds"), 600)
    settings["request_timeout_seconds"] = 600
    log = logging.handlers.BufferingHandler(1000)
    log.setLevel(logging.WARNING)
    logging.getLogger().addHandler(log)
    with listening(artifact, engine, client_timeout_seconds=SECONDS, **settings) as served:
        yield served
    logging.getLogger().removeHandler(log)
    assert [record.getMessage() for record in log.buffer] == []


@contextlib.contextmanager
def connected(port: int, *parts: bytes) -> Iterator[socket.socket]:
    """Open a connection with a small window, and send some bytes."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(LATE)
        connection.connect(("127.0.0.1", port))
        for part in parts:
            connection.sendall(part)
        yield connection


def asking(inputs: list[str]) -> bytes:
    """Return a request for a binary reply of 4 MB for each long text."""
    content = json.dumps({"inputs": inputs}).encode()
    return (
        b"POST /attention HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        b"accept: application/vnd.safetensors\r\n"
        b"content-length: %d\r\n\r\n%s" % (len(content), content)
    )


def rest(connection: socket.socket) -> bytes:
    """Return all bytes until the server closes the connection."""
    received = []
    with contextlib.suppress(ConnectionResetError):
        while received[-1:] != [b""]:
            received.append(connection.recv(65536))
    return b"".join(received)


def live(connection: socket.socket) -> bytes:
    """Return the whole reply to `GET`, which may come in several segments."""
    received = b""
    while not received.endswith(b'{"status":"live"}'):
        part = connection.recv(1000)
        assert part, received
        received += part
    return received


def drip(connection: socket.socket, drop: bytes) -> bytes:
    """Send a few bytes ten times in each client timeout, until the server answers."""
    connection.settimeout(SECONDS / 10)
    deadline = time.monotonic() + LATE
    while time.monotonic() < deadline:
        connection.sendall(drop)
        with contextlib.suppress(TimeoutError):
            return connection.recv(1000)
    raise AssertionError("the server never answered")


def assert_nothing_left(app: FastAPI) -> None:
    """Check that no connection, no request and no reserved bytes are left."""
    state = state_of(app)
    eventually(lambda: state.bodies.held == state.replies.held == 0)
    lanes = state_of(app).models.default.inference.engines.default.lanes
    assert {lane.queued_tokens for lane in lanes.values()} == {0}


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"G", GET[:-4], GET, GET + b"X: a"])
def test_a_head_is_due_in_time(served: tuple[FastAPI, int], sent: bytes) -> None:
    with connected(served[1], *[sent][: len(sent)]) as connection:
        started = time.monotonic()
        reply = rest(connection)
    assert time.monotonic() - started > 0.8 * SECONDS
    assert reply.startswith(b"HTTP/1.1 408 ") if sent else reply == b""
    if sent:
        assert b"/problems/request-timeout" in reply


def test_a_head_in_drops_is_due_all_the_same(served: tuple[FastAPI, int]) -> None:
    with connected(served[1], GET + b"X: ") as connection:
        assert drip(connection, b"a").startswith(b"HTTP/1.1 408 ")


def test_empty_lines_do_not_keep_a_connection(served: tuple[FastAPI, int]) -> None:
    with connected(served[1], GET + b"\r\n") as connection:
        assert live(connection).startswith(b"HTTP/1.1 200 ")
        assert drip(connection, b"\r\n").startswith(b"HTTP/1.1 408 ")


def test_the_next_head_is_due_as_the_first(served: tuple[FastAPI, int]) -> None:
    with connected(served[1], GET + b"\r\n") as connection:
        assert live(connection).startswith(b"HTTP/1.1 200 ")
        connection.sendall(GET)
        assert rest(connection).startswith(b"HTTP/1.1 408 ")


def test_half_a_head_behind_a_request_waits_for_its_turn(served: tuple[FastAPI, int]) -> None:
    with connected(served[1], GET + b"\r\n" + GET) as connection:
        reply = rest(connection)
    assert reply.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "head",
    [
        POST + LENGTH,
        POST + LENGTH + b"Expect: 100-continue\r\n",
        POST + b"Transfer-Encoding: chunked\r\n",
    ],
)
@pytest.mark.parametrize("body", [b"", b"1", b'5\r\n{"'])
def test_a_body_is_due_in_time(served: tuple[FastAPI, int], head: bytes, body: bytes) -> None:
    app, port = served

    def late() -> float:
        return counted(app, "headscope_requests_total", route="/encode", status="408")

    before = late()
    with connected(port, head + b"\r\n" + body) as connection:
        reply = rest(connection).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close\r\n" in reply
    assert b'"retryable":true' in reply
    eventually(lambda: late() > before)  # a reply is counted after it is sent
    assert_nothing_left(app)
    assert late() == before + 1


@pytest.mark.parametrize("next_request", [b"", GET + b"\r\n"], ids=["alone", "pipelined"])
def test_who_reads_nothing_of_a_reply_is_cut_off(
    served: tuple[FastAPI, int], next_request: bytes
) -> None:
    app, port = served
    before = counted(app, "headscope_client_disconnects_total")
    with connected(port, asking([LONG] * 5), next_request) as connection:
        eventually(lambda: counted(app, "headscope_client_disconnects_total") == before + 1)
        assert_nothing_left(app)
        assert len(rest(connection)) < 10_000_000


class Alone:
    """Server of one connection whose reply has a given size and is written at once."""

    def __init__(self, size: int, client_seconds: float = SECONDS) -> None:
        self.client_seconds = client_seconds
        self.state = uvicorn.server.ServerState()
        self.answered = asyncio.Event()
        self._size = size

    async def open(self, client: socket.socket, ours: socket.socket) -> None:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        client.setblocking(False)
        ours.setblocking(False)
        http: Any = functools.partial(
            HttpProtocol,
            client_timeout_seconds=self.client_seconds,
            error_response=error_response,
            count_refusal=lambda _: None,
        )
        config = uvicorn.Config(
            self._answer, http=http, ws="none", lifespan="off", interface="asgi3", log_config=None
        )
        config.load()
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(
            lambda: http(config=config, server_state=self.state, app_state={}), ours
        )
        await loop.sock_sendall(client, GET + b"Connection: close\r\n\r\n")
        async with asyncio.timeout(LATE):
            await self.answered.wait()

    async def _answer(self, _: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(self._size)})
        self.answered.set()


class Left(Alone):
    """Server whose client sends a request and leaves before the request begins."""

    messages: list[str]

    async def _answer(self, scope: Scope, receive: Receive, _: Send) -> None:
        self.messages = ["whole body"] if "whole_body" in scope else []
        self.messages.append((await receive())["type"])
        self.answered.set()


@pytest.mark.anyio
async def test_a_request_whose_client_left_before_it_began_is_told() -> None:
    server, pair = Left(0), socket.socketpair()
    with pair[0]:
        lost = HttpProtocol.data_received

        def receive_and_lose(self: HttpProtocol, data: bytes) -> None:
            lost(self, data)
            self.connection_lost(None)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(HttpProtocol, "data_received", receive_and_lose)
            await server.open(*pair)
    assert server.messages == ["http.disconnect"]


@pytest.mark.anyio
async def test_who_reads_slowly_but_steadily_gets_everything() -> None:
    """The client reads at four times the minimum rate, for far longer than the timeout: a machine
    may pause for 1.5 s meanwhile."""
    whole, received, seconds = 12 * TAKEN_BYTES, 0, 2.0
    server, pair = Alone(whole, seconds), socket.socketpair()
    with pair[0]:
        await server.open(*pair)
        loop = asyncio.get_running_loop()
        started = loop.time()
        while part := await asyncio.wait_for(loop.sock_recv(pair[0], 2**16), LATE):
            received += len(part)
            due = started + received / (4 * TAKEN_BYTES / seconds)
            await asyncio.sleep(max(0, due - loop.time()))
    assert received > whole
    assert loop.time() - started > 2 * seconds


@pytest.mark.anyio
@pytest.mark.parametrize("half_closes", [False, True])
async def test_who_does_not_take_the_end_of_a_reply_is_cut_off(half_closes: bool) -> None:
    """The rest is below the transport's high-water mark: only closing finds the stalled client."""
    server, pair = Alone(50_000), socket.socketpair()
    with pair[0]:
        await server.open(*pair)
        if half_closes:
            pair[0].shutdown(socket.SHUT_WR)
        assert server.state.connections
        async with asyncio.timeout(LATE):
            while server.state.connections:
                await asyncio.sleep(0.01)
