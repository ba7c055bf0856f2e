"""Opening of damaged picture files: crashes, hangs, memory and time.

Run: python -m benchmarks.image_files [--files N] [--seed N] [--max-pixels N]

A child process opens and prepares each file. A file that ends the process is a crash; one that
takes longer than `HANG_SECONDS` is a hang, and ends it too. A new process goes on after either.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from benchmarks.harness.report import markdown
from model.errors import ImageError
from model.images.opening import ImageLimits, open_image
from model.images.pixels import prepare
from model.images.processing import ImageProcessing
from testing.damaged_pictures import damaged
from testing.memory import memory_bytes
from testing.pictures import animated, cmyk, grey_of_16_bits, grey_profile, kinds

HANG_SECONDS = 30.0
PROCESSING = ImageProcessing(shortest_edge=224, crop=(224, 224), rescale_factor=1 / 255)
OPENED = "opened"
CHILD = (sys.executable, "-W", "ignore", "-m", "benchmarks.image_files", "--child")
"""Command of the child process; Pillow warns of damaged metadata."""


@dataclass
class Outcomes:
    """Outcomes of all files."""

    counts: Counter[str] = field(default_factory=Counter)
    """Number of files by the reason of the refusal, or `OPENED`."""
    seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    crashes: list[int] = field(default_factory=list)
    """Seeds of the files that ended the process."""
    hangs: list[int] = field(default_factory=list)

    def add(self, line: str) -> None:
        """Add a child's line."""
        seconds, peak, reason = line.rstrip("\n").split("\t", 2)
        self.counts[reason] += 1
        self.seconds.append(float(seconds))
        self.peak_bytes = max(self.peak_bytes, int(peak))


def files() -> list[bytes]:
    """Return whole files of all formats to damage."""
    several = [animated(kind) for kind in ("PNG", "WEBP", "GIF", "MPO")]
    return [*kinds().values(), grey_of_16_bits(), cmyk(grey_profile()), cmyk(None), *several]


def outcome(data: bytes, limits: ImageLimits) -> str:
    """Open and prepare a file; return the reason of the refusal, or `OPENED`."""
    try:
        prepare(open_image(data, limits), PROCESSING)
    except ImageError as error:
        return str(error)
    return OPENED


def child(seeds: range, limits: ImageLimits) -> None:
    """Print a line for each file: seconds, peak of memory in bytes and the outcome."""
    whole = files()
    print("ready", flush=True)
    for seed in seeds:
        data = damaged(whole, seed)
        started = time.perf_counter()
        reason = outcome(data, limits)
        seconds = time.perf_counter() - started
        print(f"{seconds:.6f}\t{memory_bytes('self', 'VmHWM')}\t{reason}", flush=True)


def run(seeds: range, limits: ImageLimits) -> Outcomes:
    """Open the damaged files of the seeds in child processes."""
    outcomes, following = Outcomes(), seeds.start
    while following < seeds.stop:
        following = _run_child(range(following, seeds.stop), limits, outcomes)
    return outcomes


def _run_child(seeds: range, limits: ImageLimits, outcomes: Outcomes) -> int:
    """Read one child's lines; return the first seed that it did not reach."""
    numbers = map(str, (seeds.start, seeds.stop, limits.max_pixels))
    with subprocess.Popen([*CHILD, *numbers], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        process.stdout.readline()
        for seed in seeds:
            timer = threading.Timer(HANG_SECONDS, process.kill)
            timer.start()
            line = process.stdout.readline()
            hung = not timer.is_alive()
            timer.cancel()
            if not line:
                (outcomes.hangs if hung else outcomes.crashes).append(seed)
                return seed + 1
            outcomes.add(line)
    return seeds.stop


def report(outcomes: Outcomes) -> str:
    """Return a table of the outcomes."""
    rows: list[tuple[object, object]] = [
        ("crashes", f"{len(outcomes.crashes)} {outcomes.crashes or ''}"),
        ("hangs", f"{len(outcomes.hangs)} {outcomes.hangs or ''}"),
        ("slowest file", f"{max(outcomes.seconds, default=0) * 1000:.0f} ms"),
        ("peak memory of the process", f"{outcomes.peak_bytes / 2**20:.0f} MiB"),
        *outcomes.counts.most_common(),
    ]
    return markdown(("outcome", "files"), rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-pixels", type=int, default=50_000_000)
    parser.add_argument("--child", type=int, nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        first, last, max_pixels = given.child
        child(range(first, last), ImageLimits(max_pixels))
        return 0
    seeds = range(given.seed, given.seed + given.files)
    outcomes = run(seeds, ImageLimits(given.max_pixels))
    print(report(outcomes))
    return 1 if outcomes.crashes or outcomes.hangs else 0


if __name__ == "__main__":
    sys.exit(main())
