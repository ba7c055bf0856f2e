"""Mutations of raw requests, and a server's replies to them."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from testing.blocking import Outcome, exchange
from testing.raw_http import AMBIGUOUS, CHUNKED, GOOD, LARGE, LENGTH, UPGRADE, WEBSOCKET

CONNECTIONS = 8
"""Number of connections at once."""

_SPICE = [
    *(b"\0", b"\r", b"\n", b"\r\n", b"\r\n ", b" ", b"\t", b"\xff", b"\xed\xa0\x80", b":"),
    *(b";", b","),
    *(b"-1", b"0", b"9" * 20, b"0x10", b"%00", b"%zz", b"//", b"../", b"*", b"#", b"?", b"@"),
    *(b"HTTP/1.0", b"HTTP/2.0", b"HEAD", b"CONNECT", b"OPTIONS", b"PRI", b"chunked", b"gzip"),
    *(LENGTH, CHUNKED, UPGRADE, WEBSOCKET, b"Expect: 100-continue\r\n", b"Host: b\r\n"),
    *(b"Connection: close\r\n", b"Content-Encoding: gzip\r\n", b"Authorization: Basic \xff\r\n"),
    *(b"NaN", b"\\ud800", b'"', b"[" * 50_000, b"9" * 5000, b"\xe2\x80\x8d", b"X: a\r\n" * 120),
]


def request(rng: random.Random) -> bytes:
    """Return a request of the corpus, mutated or not."""
    data = rng.choice([*GOOD.values(), *AMBIGUOUS.values(), *LARGE.values()])
    if rng.random() < 0.7:
        data = rng.choice(list(GOOD.values()))
    mutations: list[Callable[[bytes, random.Random], bytes]]
    mutations = [_flip, _insert, _delete, _repeat, _cut, _follow, _shuffle]
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        data = rng.choice(mutations)(data, rng)
    return data


def _span(data: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.choice([1, 2, 8, 64]))


def _flip(data: bytes, rng: random.Random) -> bytes:
    start, _ = _span(data, rng)
    return data[:start] + bytes([rng.randrange(256)]) + data[start + 1 :]


def _insert(data: bytes, rng: random.Random) -> bytes:
    start, _ = _span(data, rng)
    return data[:start] + rng.choice(_SPICE) + data[start:]


def _delete(data: bytes, rng: random.Random) -> bytes:
    start, end = _span(data, rng)
    return data[:start] + data[end:]


def _repeat(data: bytes, rng: random.Random) -> bytes:
    start, end = _span(data, rng)
    return data[:end] + data[start:end] * rng.choice([1, 1, 200]) + data[end:]


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: _span(data, rng)[0]]


def _follow(data: bytes, rng: random.Random) -> bytes:
    return data + rng.choice([*GOOD.values(), *AMBIGUOUS.values()])


def _shuffle(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\r\n")
    rng.shuffle(lines)
    return b"\r\n".join(lines)


def run(port: int, count: int, seed: int) -> dict[Outcome, list[bytes]]:
    """Send `count` requests, several at a time; return them by outcome, equal for equal seeds."""
    requests = [request(random.Random(f"{seed}-{number}")) for number in range(count)]
    found: dict[Outcome, list[bytes]] = {}
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        outcomes = pool.map(lambda data: exchange(port, data), requests)
        for data, outcome in zip(requests, outcomes, strict=True):
            found.setdefault(outcome, []).append(data)
    return found
