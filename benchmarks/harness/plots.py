"""SVG figures for the documentation; equal numbers give equal bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from benchmarks.harness.rows import PERCENTILES, Row

PLOTS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
STYLE: dict[str, Any] = {
    "svg.hashsalt": "headscope",
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    "legend.frameon": False,
}
Colour = str | tuple[float, float, float]
Drawing = tuple[Figure, list[Axes]]
OURS = ("#08306b", "#2171b5", "#6baed6")
THEIRS = mpl.color_sequences["Dark2"] + mpl.color_sequences["Set2"] + mpl.color_sequences["Set1"]


def colours(rows: Sequence[Row]) -> dict[str, Colour]:
    """Return shades of blue for Headscope and other colours for peers, in order of appearance."""
    ours, theirs = iter(OURS), iter(THEIRS)
    colour: dict[str, Colour] = {}
    for row in rows:
        if row.system not in colour:
            colour[row.system] = next(ours if row.system.startswith("Headscope") else theirs)
    return colour


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw the three figures of the throughput benchmark."""
    colour = colours(rows)
    return [
        throughput(rows, colour, folder / "throughput.svg"),
        latency(rows, colour, folder / "latency.svg"),
        share(rows, colour, folder / "share.svg"),
    ]


def throughput(rows: Sequence[Row], colour: dict[str, Colour], path: Path) -> Path:
    """Draw texts a second against connections; ways in process are dashed lines."""
    figure, (axes,) = figure_of(8.5, 4.2)
    for system, paint in colour.items():
        of_system = [row for row in rows if row.system == system and not row.fixed_arrivals]
        served = [row for row in of_system if row.connections is not None]
        if served:
            connections = [row.connections or 0 for row in served]
            rate = [row.texts_per_second for row in served]
            below = [row.texts_per_second - row.least for row in served]
            above = [row.most - row.texts_per_second for row in served]
            axes.errorbar(
                connections, rate, (below, above), marker="o", color=paint, label=system, capsize=3
            )
        for row in of_system:
            if row.connections is None:
                axes.axhline(row.texts_per_second, color=paint, linestyle="--", linewidth=1)
                if not served:
                    axes.plot([], [], "--", color=paint, linewidth=1, label=row.name)
    ticks = sorted({row.connections for row in rows if row.connections and not row.fixed_arrivals})
    log_axis(axes, ticks)
    axes.set_ylim(bottom=0)
    axes.set(xlabel="connections, one text a request", ylabel="texts a second")
    axes.set_title("Throughput over HTTP (dashed: in process)", loc="left")
    figure.legend(loc="outside right upper")
    return save(figure, path)


def latency(rows: Sequence[Row], colour: dict[str, Colour], path: Path) -> Path:
    """Draw p50, p90 and p99 at fixed arrivals, a line a system."""
    paced = [row for row in rows if row.fixed_arrivals]
    figure, (axes,) = figure_of(7, 0.9 + 0.42 * len(paced))
    for place, row in enumerate(paced):
        values = [row.latency_ms[f"p{rank}"] for rank in PERCENTILES]
        axes.plot(values, [place] * len(values), color=colour[row.system], linewidth=2)
        for value, marker in zip(values, "o|D", strict=True):
            axes.plot(value, place, marker, color=colour[row.system], markersize=7)
    names = [f"{row.system}, {row.texts_per_second:.0f}/s" for row in paced]
    axes.set_yticks(range(len(paced)), names)
    axes.set_ylim(len(paced) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel="milliseconds from when a request was due: p50 ●  p90 |  p99 ◆")
    axes.set_title("Latency at 0.7 of a server's own throughput", loc="left")
    return save(figure, path)


def share(rows: Sequence[Row], colour: dict[str, Colour], path: Path) -> Path:
    """Draw the share of the measured limit, in process and over the most connections."""
    most = max((row.connections or 0 for row in rows if not row.fixed_arrivals), default=0)
    shown = [row for row in rows if not row.fixed_arrivals and row.connections in (None, most)]
    figure, (axes,) = figure_of(7, 0.9 + 0.32 * len(shown))
    bars = axes.barh(
        [row.name for row in shown],
        [row.share for row in shown],
        color=[colour[row.system] for row in shown],
        height=0.62,
    )
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.grid(visible=False, axis="y")
    axes.set(xlabel="share of the matrix-product rate in the same precision")
    axes.set_title("How much of the machine is used", loc="left")
    return save(figure, path)


def deletion_curves(
    shares: Sequence[float], curves: Mapping[str, Sequence[float]], path: Path
) -> Path:
    """Draw the remaining cosine against the share of removed tokens, a line a method."""
    figure, (axes,) = figure_of(7, 4.2)
    for name, curve in sorted(curves.items(), key=lambda item: sum(item[1])):
        style = {"color": "#636363", "linestyle": "--"} if name == "random" else {}
        axes.plot([0, *shares], [1, *curve], label=name, **style)
    axes.legend()
    axes.set(xlabel="share of tokens removed, most important first", ylabel="cosine left")
    axes.set_title("Deletion: the lower, the more faithful", loc="left")
    return save(figure, path)


def figure_of(width: float, height: float, rows: int = 1, columns: int = 1) -> Drawing:
    plt.style.use(STYLE)
    figure, axes = plt.subplots(rows, columns, figsize=(width, height), squeeze=False)
    return figure, list(axes.flat)


def log_axis(axes: Axes, ticks: Sequence[float]) -> None:
    """Scale the x axis by powers of two, with a label at each measured value."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path
