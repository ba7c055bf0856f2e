"""Comparison of all ways, a row a way, as a table and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.harness.report import markdown
from benchmarks.harness.ways import Sample, Way

PERCENTILES = (50, 90, 99)
OURS = "Headscope"
FASTEST_PEER = "fastest peer"
"""Base that stands for the peer with the highest median rate in a way's precision and load."""


@dataclass(frozen=True)
class Row:
    """Result of one way over all rounds: medians, and the smallest and largest rate."""

    name: str
    system: str
    precision: str
    connections: int | None
    fixed_arrivals: bool
    texts_per_second: float
    least: float
    most: float
    ratios: dict[str, float]
    """Texts per second relative to each base: the median of the rounds' ratios."""
    share: float
    latency_ms: dict[str, float]
    """p50, p90 and p99 over the requests of all rounds; empty in process."""
    client_cores: float
    cosine: float | None
    """Least cosine of its vectors with sentence-transformers' in float32."""


def summarise(
    ways: Sequence[Way], samples: Mapping[str, list[Sample]], bases: Sequence[str]
) -> list[Row]:
    """Return a row for each way, with its ratios to the bases.

    A base is a way's name or `FASTEST_PEER`; without such a way there is no ratio.
    """
    peers = fastest_peers(ways, samples)
    rows = []
    for way in ways:
        samples_of_way = samples[way.name]
        rates = [sample.texts_per_second for sample in samples_of_way]
        ratios = {}
        for base in bases:
            name = peers.get((way.precision, way.connections)) if base == FASTEST_PEER else base
            if name is not None and way.paced_by is None:
                pairs = zip(samples_of_way, samples[name], strict=True)
                ratios[base] = statistics.median(
                    ours.texts_per_second / theirs.texts_per_second for ours, theirs in pairs
                )
        rows.append(
            Row(
                name=way.name,
                system=way.system,
                precision=way.precision,
                connections=way.connections,
                fixed_arrivals=way.paced_by is not None,
                texts_per_second=statistics.median(rates),
                least=min(rates),
                most=max(rates),
                ratios=ratios,
                share=statistics.median(sample.share for sample in samples_of_way),
                latency_ms=percentiles(
                    [ms for sample in samples_of_way for ms in sample.latencies_ms]
                ),
                client_cores=statistics.median(sample.client_cores for sample in samples_of_way),
                cosine=way.cosine,
            )
        )
    return rows


def fastest_peers(
    ways: Sequence[Way], samples: Mapping[str, list[Sample]]
) -> dict[tuple[str, int | None], str]:
    """Return the name of the fastest peer's way in closed loop by precision and connections."""
    rates = {
        way: statistics.median(sample.texts_per_second for sample in samples[way.name])
        for way in ways
        if way.paced_by is None and not way.system.startswith(OURS)
    }
    return {
        (way.precision, way.connections): way.name for way in sorted(rates, key=rates.__getitem__)
    }


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return p50, p90 and p99, interpolated; empty without values."""
    if not values:
        return {}
    return {f"p{rank}": float(np.percentile(values, rank)) for rank in PERCENTILES}


def table(rows: Sequence[Row], bases: Sequence[str]) -> str:
    """Return a Markdown table, a row a way."""
    heads = ["way", "texts/s (least to most)", *(f"× {base}" for base in bases)]
    heads += ["share of the limit", "cosine", "p50 / p90 / p99, ms", "client's cores"]
    return markdown(heads, [cells_of(row, bases) for row in rows])


def cells_of(row: Row, bases: Sequence[str]) -> list[str]:
    """Return a row's cells."""
    cells = [row.name, f"{row.texts_per_second:.0f} ({row.least:.0f} to {row.most:.0f})"]
    cells += [f"{row.ratios[base]:.2f}" if base in row.ratios else "" for base in bases]
    cells.append("" if row.fixed_arrivals else f"{row.share:.2f}")
    cells.append("" if row.cosine is None else f"{row.cosine:.4f}")
    cells.append(" / ".join(milliseconds(value) for value in row.latency_ms.values()))
    cells.append("" if row.connections is None else f"{row.client_cores:.3f}")
    return cells


def milliseconds(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def content(
    rows: Sequence[Row], samples: Mapping[str, list[Sample]], about: Mapping[str, object]
) -> dict[str, object]:
    """Return all results as JSON's values: the rows, and every sample with every latency."""
    return {
        **about,
        "rows": [asdict(row) for row in rows],
        "samples": {
            name: [
                {**asdict(one), "latencies_ms": [round(ms, 2) for ms in one.latencies_ms]}
                for one in found
            ]
            for name, found in samples.items()
        },
    }
