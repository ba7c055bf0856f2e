"""Hardware limits: rates of matrix products in each type, and of copies each way."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.harness.bench import Bench
from benchmarks.harness.device_limits import PINNED
from benchmarks.harness.figures import Figure, not_measured, number


def measure(bench: Bench) -> Iterator[Figure]:
    rates = {name: rate / 1e12 for name, rate in bench.products.items()}
    others = ", ".join(f"{number(rate)} in {name}" for name, rate in rates.items())
    yield Figure("matrix products", rates["fp16"], "TFLOP/s in fp16", note=others, details=rates)
    if not bench.copies:
        yield not_measured("copies", "needs a GPU")
        return
    speeds = {way: rate / 1e9 for way, rate in bench.copies.items()}
    others = ", ".join(f"{number(speed)} {way}" for way, speed in speeds.items())
    yield Figure("copies", speeds[PINNED], "GB/s to the host", note=others, details=speeds)
