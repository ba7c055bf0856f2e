"""Throughput, latency and memory of the service over HTTP, as each parameter of the load grows.

Run: python -m benchmarks.scale [--precision fp32] [--rounds N] [--json FILE] [--plots FOLDER]

    length        texts of exactly 16 to 512 tokens, made of the workload's words
    budget        `--max-batch-tokens` from 128 to 4096
    connections   1 to 256
    cores         1 and 2: the service's; the load generator may use all

Closed loop, one text a request. Every point runs on a fresh service, so that its peak memory is its
own. Rounds are taken in turn, and the matrix-product calibrator runs before and after each sample,
on as many cores as the service has.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from tokenizers import Tokenizer

from benchmarks.harness.calibrate import Calibrator, Precision
from benchmarks.harness.cost import flop
from benchmarks.harness.plots import OURS, PLOTS, figure_of, log_axis, save
from benchmarks.harness.report import markdown, write_json
from benchmarks.harness.rows import percentiles
from benchmarks.harness.servers import Server, artifact_of, headscope, running
from benchmarks.harness.service import default_checkpoint
from benchmarks.harness.texts import one_token_words, read_workload, texts_of
from model.config.encoder import EncoderConfig
from model.families.registry import read_config
from testing.memory import MEBIBYTE, family_bytes

WARM_UP = 32
LABELS = {
    "length": "tokens of a text",
    "budget": "most tokens of a padded batch",
    "connections": "connections",
}
LENGTHS, BUDGETS = (16, 32, 64, 128, 256, 512), (128, 256, 512, 1024, 2048, 4096)
CONNECTIONS = (1, 4, 16, 64, 256)
TEXTS = 256
"""Number of the workload's texts in a sample."""
TOKENS, LEAST_TEXTS = 12288, 48
"""Approximate tokens of a sample of one length, and its minimum number of texts."""
LONGEST, MODEL_LIMIT = 512, 256
"""Maximum tokens of a text: on the length axis; on other axes (the model's own maximum)."""


@dataclass(frozen=True)
class Point:
    """Setting of one axis, and the load that is sent."""

    axis: str
    value: int
    texts: list[str]
    tokens: list[int]
    """Tokens of each text."""
    cores: int
    connections: int = 64
    flags: tuple[str, ...] = ()


def points(workload: Sequence[str], tokenizer: Tokenizer, cores: int) -> Iterator[Point]:
    """Yield the points of every axis, for a machine of `cores` cores."""
    texts = list(workload[:TEXTS])
    tokens = [min(len(one.ids), MODEL_LIMIT) for one in tokenizer.encode_batch(texts)]
    words = one_token_words(workload, tokenizer)
    for length in LENGTHS:
        count = max(LEAST_TEXTS, TOKENS // length)
        made, flags = texts_of(length, count, words), ("--max-length", str(LONGEST))
        yield Point("length", length, made, [length] * count, cores, 16, flags)
    for budget in BUDGETS:
        flags = ("--max-batch-tokens", str(budget))
        yield Point("budget", budget, texts, tokens, cores, flags=flags)
    for connections in CONNECTIONS:
        yield Point("connections", connections, texts, tokens, cores, connections)
    for used in sorted({1, cores}):
        yield Point("cores", used, texts, tokens, used)


@dataclass(frozen=True)
class Sample:
    """Result of one point in one round."""

    texts_per_second: float
    share: float
    latencies_ms: list[float]
    peak_mib: float
    """Peak memory of all processes of the service, in MiB."""


@dataclass(frozen=True)
class Row:
    """Result of one point over all rounds: medians, and percentiles of all requests."""

    axis: str
    value: int
    texts_per_second: float
    least: float
    most: float
    tokens_per_second: float
    share: float
    latency_ms: dict[str, float]
    peak_mib: float


@contextlib.contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Pin processes started inside the block to the first `count` cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def measure(point: Point, config: EncoderConfig, server: Server, calibrator: Calibrator) -> Sample:
    """Run one round of one point on a fresh service."""
    with contextlib.ExitStack() as stack:
        with on_cores(point.cores):
            started = stack.enter_context(running(server, point.texts[0]))
        requests = started.requests(point.texts)
        started.load(requests[:WARM_UP], point.connections)
        before = calibrator.flop_per_second()
        result = started.load(requests, point.connections)
        limit = (before + calibrator.flop_per_second()) / 2
        return Sample(
            texts_per_second=len(requests) / result.seconds,
            share=flop(config, point.tokens) / result.seconds / limit,
            latencies_ms=result.latencies_ms,
            peak_mib=family_bytes(started.process.pid, "VmHWM") / MEBIBYTE,
        )


def summarise(point: Point, samples: Sequence[Sample]) -> Row:
    rates = [sample.texts_per_second for sample in samples]
    median = statistics.median
    return Row(
        axis=point.axis,
        value=point.value,
        texts_per_second=median(rates),
        least=min(rates),
        most=max(rates),
        tokens_per_second=median(rates) * statistics.mean(point.tokens),
        share=median(sample.share for sample in samples),
        latency_ms=percentiles([ms for sample in samples for ms in sample.latencies_ms]),
        peak_mib=median(sample.peak_mib for sample in samples),
    )


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table, a row a point."""
    heads = ["", "", "texts/s (least to most)", "tokens/s", "share", "p50 / p99, ms", "peak MiB"]
    cells = [
        (
            row.axis,
            row.value,
            f"{row.texts_per_second:.0f} ({row.least:.0f} to {row.most:.0f})",
            f"{row.tokens_per_second:.0f}",
            f"{row.share:.2f}",
            f"{row.latency_ms['p50']:.0f} / {row.latency_ms['p99']:.0f}",
            f"{row.peak_mib:.0f}",
        )
        for row in rows
    ]
    return markdown(heads, cells)


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw a figure for each axis but the cores."""
    return [
        figure([row for row in rows if row.axis == axis], label, folder / f"scale-{axis}.svg")
        for axis, label in LABELS.items()
    ]


def figure(rows: Sequence[Row], label: str, path: Path) -> Path:
    """Draw four panels over the same values."""
    drawn, (rate, share, latency, memory) = figure_of(8, 5.6, 2, 2)
    values = [row.value for row in rows]
    middle = [row.texts_per_second for row in rows]
    below = [row.texts_per_second - row.least for row in rows]
    above = [row.most - row.texts_per_second for row in rows]
    rate.errorbar(values, middle, (below, above), marker="o", color=OURS[0], capsize=3)
    rate.set(ylabel="texts a second")
    share.plot(values, [row.share for row in rows], marker="o", color=OURS[0])
    share.set(ylabel="share of the matrix-product rate", ylim=(0, 1))
    for rank, paint in zip(("p50", "p99"), OURS, strict=False):
        found = [row.latency_ms[rank] for row in rows]
        latency.plot(values, found, marker="o", color=paint, label=rank)
    latency.set(ylabel="latency, ms", yscale="log")
    latency.yaxis.set_major_formatter("{x:g}")
    latency.legend()
    memory.plot(values, [row.peak_mib for row in rows], marker="o", color=OURS[0])
    memory.set(ylabel="peak memory, MiB")
    for axes in (rate, share, latency, memory):
        axes.set_xlabel(label)
        log_axis(axes, values)
    for axes in (rate, memory):
        axes.set_ylim(bottom=0)
    return save(drawn, path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--precision", choices=get_args(Precision), default="fp32")
    parser.add_argument(
        "--workload", type=Path, help="lines {text}; by default PyTorch's documentation"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="where to write every sample")
    parser.add_argument("--plots", type=Path, default=PLOTS, help="a folder for the figures")
    options = parser.parse_args()
    checkpoint = default_checkpoint()
    config = read_config(checkpoint)
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    cores = len(os.sched_getaffinity(0))
    line = list(points(read_workload(options.workload, 2000), tokenizer, cores))
    calibrators = {n: Calibrator(options.precision, n) for n in {point.cores for point in line}}
    name, artifact = f"Headscope {options.precision}", artifact_of(options.precision)
    samples: list[list[Sample]] = [[] for _ in line]
    for _ in range(options.rounds):
        for point, samples_of_point in zip(line, samples, strict=True):
            server = headscope(name, options.precision, artifact, point.flags)
            samples_of_point.append(measure(point, config, server, calibrators[point.cores]))
            rate = samples_of_point[-1].texts_per_second
            print(f"{point.axis} {point.value}: {rate:.0f}/s", file=sys.stderr)
    rows = [
        summarise(point, samples_of_point)
        for point, samples_of_point in zip(line, samples, strict=True)
    ]
    print(table(rows))
    print(f"{options.precision}, {cores} cores; medians of {options.rounds} rounds taken in turn")
    if options.json:
        content = {
            "rows": [asdict(row) for row in rows],
            "samples": [
                [asdict(sample) for sample in samples_of_point] for samples_of_point in samples
            ],
        }
        write_json(options.json, content)
    for path in draw(rows, options.plots):
        print(path)


if __name__ == "__main__":
    main()
