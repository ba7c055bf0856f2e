"""Figures of `benchmarks.scale`, one an axis: throughput, share, latency and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.plots import OURS, figure_of, log_axis, save

LABELS = {
    "length": "tokens of a text",
    "budget": "most tokens of a padded batch",
    "connections": "connections",
}


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


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
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
