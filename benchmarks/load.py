"""A load generator: `python -m benchmarks.load URL CONNECTIONS < texts.json`.

One text a request over keep-alive connections, in raw asyncio streams: an HTTP library would take
more of a core than the server that is measured. Prints the seconds, and its own processor seconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from urllib.parse import urlsplit


async def connection(host: str, port: int, bodies: list[bytes]) -> None:
    """Send bodies from the shared list until it is empty; any reply but a 200 ends the run."""
    reader, writer = await asyncio.open_connection(host, port)
    while bodies:
        body = bodies.pop()
        writer.write(
            b"POST /encode HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(head.decode())
        length = next(
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        )
        await reader.readexactly(length)
    writer.close()


async def main() -> None:
    url, connections = urlsplit(sys.argv[1]), int(sys.argv[2])
    bodies = [
        json.dumps({"inputs": text, "outputs": ["pooled"], "truncate": True}).encode()
        for text in reversed(json.load(sys.stdin))
    ]
    assert url.hostname is not None
    assert url.port is not None
    started, cpu_started = time.perf_counter(), time.process_time()
    await asyncio.gather(*(connection(url.hostname, url.port, bodies) for _ in range(connections)))
    print(json.dumps([time.perf_counter() - started, time.process_time() - cpu_started]))


if __name__ == "__main__":
    asyncio.run(main())
