"""Bodies of any shape and size up to the limit, on the real engine, and their effect on others.

Sizes are spread evenly over their logarithm. Liveness is probed all the time, a good request is
sent after each body, and memory is measured before and a minute after.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable

from testing.blocking import ask as ask_blocking
from testing.client import ask
from trials.gates import Gate, Scale, at_most, exactly, main
from trials.neighbours import MEMORY_SECONDS, bytes_at_work
from trials.overload import SEED, Probes, probing
from trials.servers import serve

MOST_BYTES = 16 * 2**20
LEAST_BYTES = 2**10
GOOD = {"inputs": "a short text", "outputs": ["pooled"]}
ALLOWED = {200, 400, 413, 422, 429}
"""Statuses with which a body of any shape may be answered."""


def _filled(opening: bytes, item: bytes, closing: bytes) -> Callable[[int], bytes]:
    def body(size: int) -> bytes:
        count = max(1, (size - len(opening) - len(closing)) // len(item))
        return opening + (item * count).rstrip(b",") + closing

    return body


SHAPES: dict[str, Callable[[int], bytes]] = {
    "pairs": _filled(b'{"inputs":[', b'["a","b"],', b"]}"),
    "empty lists": _filled(b'{"inputs":[', b"[],", b"]}"),
    "objects": _filled(b'{"inputs":[', b'{"a":1},', b"]}"),
    "numbers": _filled(b'{"inputs":[', b"1,", b"]}"),
    "fields": _filled(b'{"inputs":"a"', b',"x":1', b"}"),
    "short texts": _filled(b'{"truncate":true,"inputs":[', b'"a b",', b"]}"),
    "deep": lambda size: b'{"inputs":' + b"[" * (size // 2) + b"]" * (size // 2) + b"}",
    "one text": _filled(b'{"truncate":true,"inputs":"', b"water ", b'"}'),
    "long texts": _filled(
        b'{"truncate":true,"outputs":["pooled"],"inputs":[', b'"' + b"!" * 16384 + b'",', b"]}"
    ),
    "commas in a text": _filled(b'{"truncate":true,"inputs":"', b",", b'"}'),
    "escapes": _filled(b'{"truncate":true,"inputs":"', b"\\u0041", b'"}'),
    "quotes": _filled(b'{"truncate":true,"inputs":"', b'\\"', b'"}'),
    "blanks": _filled(b'{"inputs":"a"', b" ", b"}"),
    "no JSON": _filled(b"", b"{", b""),
    "no UTF-8": _filled(b'{"inputs":"', b"\xff", b'"}'),
}


def bodies(count: int) -> list[tuple[str, int]]:
    """Return the shape and the size in bytes of `count` bodies."""
    generator = random.Random(SEED)
    logarithms = math.log(LEAST_BYTES), math.log(MOST_BYTES)
    names = [*SHAPES] * math.ceil(count / len(SHAPES))
    return [(name, round(math.exp(generator.uniform(*logarithms)))) for name in names[:count]]


async def trial(scale: Scale) -> list[Gate]:
    """Send the bodies one after another, each followed by a good request."""
    statuses: Counter[int] = Counter()
    probes, wrong = Probes(), 0
    async with serve() as service:
        expected = (await ask(service.port, "/encode", GOOD)).body
        before = await bytes_at_work(service, scale)
        async with probing(service, probes):
            for name, size in bodies(scale.of(300, len(SHAPES))):
                content = SHAPES[name](min(size, MOST_BYTES - 100))
                reply = await asyncio.to_thread(
                    ask_blocking, service.port, "/encode", content, seconds=120.0
                )
                statuses[reply.status] += 1
                wrong += (await ask(service.port, "/encode", GOOD)).body != expected
        await asyncio.sleep(scale.of(MEMORY_SECONDS, 0))
        growth = service.resident_bytes() / before
    return [
        exactly("statuses that no body may have", set(), set(statuses) - ALLOWED),
        exactly("a good request answered otherwise than before", 0, wrong),
        exactly("liveness probes that failed", 0, probes.failed),
        at_most("longest silence of liveness", 250 * scale.slack, max(probes.latencies_ms), " ms"),
        at_most("memory a minute later, times that before", 1.2 * scale.slack, growth),
    ]


def run(scale: Scale) -> list[Gate]:
    """Return the gates of any body up to the limit."""
    return asyncio.run(trial(scale))


if __name__ == "__main__":
    main(__doc__, bodies=run)
