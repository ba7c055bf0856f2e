"""Clock, device and figures of a run; every figure is in the JSON file as soon as it is printed."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

Way = Callable[[], Any]
"""Function that computes the unit vectors of a batch, `[B, H]`, on the device or in host memory."""
Make = Callable[[], Way]
TOLERANCE = 1e-3
"""Maximum difference of a unit vector's value in fp16 from transformers in float32."""
SAMPLE_MS, ROUNDS, PROFILED_RUNS = 60, 5, 3
ENOUGH_SECONDS = 25.0
"""A cell is not begun with less time left."""


class Unavailable(Exception):
    """Reason why something is not measured here."""


@dataclass(frozen=True)
class Shape:
    """Sizes of an encoder."""

    layers: int
    heads: int
    hidden: int
    inner: int

    def flop(self, lengths: Sequence[int]) -> int:
        """Return the operations of texts of these lengths: products and attention, no padding."""
        weights = 4 * self.hidden**2 + 2 * self.hidden * self.inner
        return self.layers * sum(2 * n * weights + 4 * n * n * self.hidden for n in lengths)


@dataclass(frozen=True)
class Work:
    """Texts or pictures that all ways of a cell compute in one batch."""

    shape: Shape
    lengths: Sequence[int]
    reference: torch.Tensor
    """Unit vectors `[B, H]` of transformers in float32, on the host."""
    rival: str
    predicted_us: Mapping[str, float] = field(default_factory=dict)
    """Predicted µs of a layer by way; some ways have no prediction."""


class Lab:
    """Figures of all cells, and the device's stream and clock."""

    def __init__(self, path: Path, seconds: float, *, cpu: bool) -> None:
        self.cpu = cpu
        self.stream = None if cpu else torch.cuda.Stream()
        self.figures: list[dict[str, Any]] = []
        self.limits: dict[str, float] = {}
        """FLOP/s of products, and bytes/s of each kind of copies, once measured."""
        self._path, self.cell = path, "environment"
        self._latest = time.monotonic() + seconds - ENOUGH_SECONDS

    def is_late(self) -> bool:
        """Return whether too little of the budget is left."""
        return time.monotonic() > self._latest

    def note(self, **figure: Any) -> None:
        """Add a figure of the current cell, write all, and print it; unknown ones are left out."""
        known = {k: v for k, v in figure.items() if v is not None and str(v) != "nan"}
        short = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in known.items()}
        self.figures.append({"cell": self.cell, **short})
        part = self._path.with_name(f"{self._path.name}.part")
        part.write_text(json.dumps(self.figures, indent=1) + "\n", encoding="utf-8")
        part.replace(self._path)
        print(" ", *(f"{k}={v}" for k, v in short.items() if "kernels" not in k), flush=True)

    def run(self, name: str, cell: Callable[[], None]) -> None:
        """Run a cell; its failure is a figure, and does not stop the others."""
        self.cell = name
        print(f"\n{name}", flush=True)
        start = time.monotonic()
        try:
            if self.is_late():
                raise Unavailable("no time is left")
            cell()
        except Unavailable as reason:
            self.note(skipped=str(reason))
        except Exception:  # the next cell may still tell something
            self.note(failed=traceback.format_exc()[-1500:])
        self.note(cell_seconds=time.monotonic() - start)
        torch.cuda.empty_cache()

    def compare(self, makes: Mapping[str, Make], work: Work, *, kernels: bool = False) -> None:
        """Check every way against the reference, then time all in turn; a figure for each way."""
        ways: dict[str, Way] = {}
        errors: dict[str, float] = {}
        for name, make in makes.items():
            try:
                way = make()
                with self.on_stream():
                    errors[name] = difference(way(), work.reference)
                ways[name] = way
            except Exception as error:  # one way's failure does not stop the others
                kind = "skipped" if isinstance(error, Unavailable) else "failed"
                self.note(way=name, **{kind: str(error)[:600]})
        median_ms, layers = self.median_ms(ways), work.shape.layers
        flop_ms = work.shape.flop(work.lengths) / self.limits.get("product", math.nan) * 1e3
        for name, ms in median_ms.items():
            self.note(
                way=name,
                verdict="right" if errors[name] < TOLERANCE else "WRONG",  # a NaN is wrong
                error=errors[name],
                ms=ms,
                launch_ms=self._launch_ms(ways[name]),
                us_a_layer=1e3 * ms / layers,
                predicted_us_a_layer=work.predicted_us.get(name),
                times_rival=median_ms.get(work.rival, math.nan) / ms,
                tokens_a_second=1e3 * sum(work.lengths) / ms,
                share_of_products=flop_ms / ms,
            )
        for name, way in ways.items() if kernels and not self.cpu else ():
            self._kernels(name, way, layers)

    def median_ms(self, ways: Mapping[str, Way]) -> dict[str, float]:
        """Return the median ms of a call of each way, all in turn; a sample is many calls."""
        samples: dict[str, list[float]] = {name: [] for name in ways}
        with self.on_stream():
            once = {name: min(self._ms(way, 1) for _ in range(3)) for name, way in ways.items()}
            for _ in range(ROUNDS):
                for name, way in ways.items():
                    calls = 1 if self.cpu else max(1, round(SAMPLE_MS / once[name]))
                    samples[name].append(self._ms(way, calls))
        return {name: statistics.median(some) for name, some in samples.items()}

    def _ms(self, way: Way, calls: int) -> float:
        """Return the ms of a call, by the device's clock if there is one."""
        if self.stream is None:
            return self._launch_ms(way)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record(self.stream)
        for _ in range(calls):
            way()
        last.record(self.stream)
        last.synchronize()
        return first.elapsed_time(last) / calls

    def _launch_ms(self, way: Way) -> float:
        """Return the ms until one call returns; near `ms`, the host is the limit."""
        with self.on_stream():
            start = time.perf_counter()
            way()
            return 1e3 * (time.perf_counter() - start)

    def _kernels(self, name: str, way: Way, layers: int) -> None:
        """Note the device's time by kernel and copy; print the first twelve."""
        with self.on_stream(), profile(activities=[ProfilerActivity.CUDA]) as profiled:
            for _ in range(PROFILED_RUNS):
                way()
            torch.cuda.synchronize()
        rows = sorted(
            (event.self_device_time_total / PROFILED_RUNS, event.count / PROFILED_RUNS, event.key)
            for event in profiled.key_averages()
            if event.self_device_time_total
        )[::-1]
        for us, launches, kernel in rows[:12]:
            print(f"    {us / layers:8.1f} us a layer {launches:7.1f} x {kernel[:100]}")
        self.note(
            way=name,
            device_ms=sum(us for us, *_ in rows) / 1e3,
            launches_a_layer=sum(launches for _, launches, _ in rows) / layers,
            kernels=[(round(us, 1), launches, kernel[:300]) for us, launches, kernel in rows[:40]],
        )

    @contextlib.contextmanager
    def on_stream(self) -> Iterator[None]:
        """Make the lab's stream PyTorch's current one; at both ends the device is idle."""
        if self.stream is None:
            yield
            return
        with torch.cuda.stream(self.stream):
            torch.cuda.synchronize()
            yield
            torch.cuda.synchronize()


def difference(vectors: Any, reference: torch.Tensor) -> float:
    """Return the largest difference from the reference `[B, H]`; NaN for another shape."""
    found = torch.as_tensor(vectors).float().cpu()
    return (found - reference).abs().max().item() if found.shape == reference.shape else math.nan
