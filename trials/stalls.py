"""A hundred clients that do not read their reply, and a hundred that do not send their request.

Other clients use half the stub's capacity, with and without the stalled clients in turn. The
service must disconnect stalled clients and free their resources.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import psutil

from testing.client import ask, request
from testing.load import Result
from trials.gates import Gate, Scale, at_least, at_most, exactly, main
from trials.overload import Overload
from trials.servers import PATIENT, Service, stub

TEXTS, TOKENS, BATCH_SECONDS = 4, 16, 0.01
CUT_SECONDS = 30
REPLY = {"inputs": "the water " * 160, "layers": [0, 1]}
"""Request for maps of 10 MB."""
REPLY_BYTES = 11_000_000
"""Bytes of the reply and of the hidden states from which it is computed."""
BINARY = {"accept": "application/vnd.safetensors"}
UNSENT = request("/encode", {"inputs": "the water " * 100})[:-900]
RECEIVE_BUFFER = 4096


def stall(port: int, content: bytes) -> socket.socket:
    """Open a connection that sends some bytes, and then neither sends nor reads."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    connection.connect(("127.0.0.1", port))
    connection.sendall(content)
    return connection


def served(service: Service, stallers: Sequence[socket.socket]) -> int:
    """Return the number of stalled clients to which the service still has a connection."""
    open_connections = psutil.Process(service.process.pid).net_connections("tcp")
    established = (c for c in open_connections if c.status == psutil.CONN_ESTABLISHED)
    ports = {c.raddr.port for c in established if c.raddr}
    return sum(staller.getsockname()[1] in ports for staller in stallers)


@dataclass
class Stalled:
    """Results of the stalled clients over all rounds."""

    begun: int = 0
    longest_seconds: float = 0.0
    left: int = 0
    """Number of clients still connected after `CUT_SECONDS`."""


@contextlib.asynccontextmanager
async def stalling(service: Service, count: int, stalled: Stalled) -> AsyncIterator[None]:
    """Stall `count` clients of each kind during the block, then wait until all are disconnected."""
    stallers = [stall(service.port, request("/attention", REPLY, BINARY)) for _ in range(count)]
    try:
        while await service.metric("headscope_queue_tokens"):
            await asyncio.sleep(0.02)
        stallers += [stall(service.port, UNSENT) for _ in range(count)]
        since = time.monotonic()
        while (begun := served(service, stallers)) < 2 * count and time.monotonic() < since + 1:
            await asyncio.sleep(0.02)  # until the last are accepted
        stalled.begun += begun
        yield
        while (waiting := served(service, stallers)) and time.monotonic() < since + CUT_SECONDS:
            await asyncio.sleep(0.1)
        stalled.longest_seconds = max(stalled.longest_seconds, time.monotonic() - since)
        stalled.left += waiting
    finally:
        for staller in stallers:
            staller.close()


async def trial(scale: Scale) -> list[Gate]:
    """Load the service with and without stalled clients, in turn."""
    count, stalled = scale.of(100, 5), Stalled()
    quiet: list[Result] = []
    beside: list[Result] = []
    settings = {
        "max_batch_tokens": TEXTS * TOKENS,
        "max_length": 512,
        "max_bytes_in_flight": 2 * count * REPLY_BYTES,
        "client_timeout_seconds": scale.of(20, 6),
        **PATIENT,
    }
    async with stub({"batch_seconds": BATCH_SECONDS}, **settings) as service:
        load = Overload(service, TEXTS / BATCH_SECONDS, scale.of(200, 25))
        await load.learn()
        await load.at(0.5, scale.of(5, 1))
        for _ in range(scale.of(3, 1)):
            quiet.append(await load.at(0.5, scale.of(10, 2)))
            async with stalling(service, count, stalled):
                beside.append(await load.at(0.5, scale.of(10, 2)))
        large = (await ask(service.port, "/attention", REPLY, **BINARY)).status
    outcomes = {outcome for result in (*quiet, *beside) for outcome in result.outcomes}
    allowed, all_of_them = 1.2 * scale.slack, 2 * count * len(beside)
    return [
        at_least("clients that stalled at once", scale.of(all_of_them, 1), stalled.begun),
        exactly("… everyone else", {"right"}, outcomes),
        at_most("… their median latency, times that without", allowed, ratio(beside, quiet, 50)),
        at_most("… their p99, times that without", allowed, ratio(beside, quiet, 99)),
        exactly(f"… still served after {CUT_SECONDS} s", 0, stalled.left),
        at_most("… the last cut off after", CUT_SECONDS, stalled.longest_seconds, " s"),
        exactly("… who asks for as much afterwards", 200, large),
    ]


def ratio(beside: list[Result], quiet: list[Result], percentile: int) -> float:
    """Return the ratio of a latency percentile with stalled clients to without: of the medians."""

    def of(results: list[Result]) -> float:
        latencies = [result.latencies("right") for result in results]
        return median(float(np.percentile(one, percentile)) for one in latencies)

    return of(beside) / of(quiet)


def run(scale: Scale) -> list[Gate]:
    """Return the gates of slow readers and slow senders."""
    return asyncio.run(trial(scale))


if __name__ == "__main__":
    main(__doc__, stalls=run)
