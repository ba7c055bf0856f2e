"""Server in a thread that answers as a test says, and records its requests."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = tuple[int, dict[str, str], bytes]


class Asked:
    """Server with a list of its requests: path, headers in lower case, and body."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connections = 0
        self.requests: list[tuple[str, dict[str, str], bytes]] = []


@contextlib.asynccontextmanager
async def streaming(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """Run a server of raw streams in this event loop, and yield its port."""
    tasks = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        tasks.append(task)
        with contextlib.suppress(ConnectionError):
            await answer(reader, writer)
            writer.close()
            await writer.wait_closed()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        server.close()
        await asyncio.gather(*tasks)


def ok(*_: object) -> Answer:
    return 200, {}, b"ok"


@contextlib.contextmanager
def answering(answer: Callable[[str, bytes], Answer] = ok) -> Iterator[Asked]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            asked.connections += 1

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked.requests.append((self.path, headers, body))
            status, found, content = answer(self.path, body)
            self.send_response(status)
            for name, value in found.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            self.close_connection = found.get("Connection") == "close" or self.close_connection

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 128
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Ignore clients that disconnect."""

    with Server(("127.0.0.1", 0), Handler) as server:
        asked = Asked(server.server_port)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield asked
        finally:
            server.shutdown()
