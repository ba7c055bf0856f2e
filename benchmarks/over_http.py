"""Throughput over HTTP by texts a request, form of the reply and workers, against in process.

Needs the packages of the service and of the load generator; if one is missing, the figure names it
and nothing is measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.harness.bench import Bench
from benchmarks.harness.figures import Figure, Goal, not_measured
from benchmarks.harness.timing import in_turn
from benchmarks.in_process import best_settings, mixed_workload

if TYPE_CHECKING:
    from benchmarks.harness.servers import Running

PACKAGES = ("fastapi", "uvicorn", "pydantic_settings", "orjson", "prometheus_client")
LOAD_PACKAGES = ("uvloop",)
FORMS = {"JSON": "application/json", "safetensors": "application/vnd.safetensors"}
IN_PROCESS, SINGLE = Goal("≥", 0.8), Goal("≥", 15_000.0)
WARM_UP = 0.2
"""Share of the load's time that passes before requests count."""
QUEUE_TOKENS = 2**23
CORES_PER_GENERATOR, MOST_GENERATORS = 4, 4
BODIES = 64
"""Number of different requests of a generator."""
Kind = tuple[int, str]
"""Number of texts in a request, and the form of its reply."""


@dataclass
class Rates:
    """Texts a second of each kind of request, by the number of workers."""

    found: dict[Kind, dict[int, float]] = field(default_factory=dict)

    def best(self, kind: Kind) -> tuple[float, int]:
        """Return the highest rate, and its number of workers."""
        return max((rate, workers) for workers, rate in self.found[kind].items())


def measure(bench: Bench) -> Iterator[Figure]:
    missing = [name for name in (*PACKAGES, *LOAD_PACKAGES) if find_spec(name) is None]
    if missing:
        yield not_measured("over HTTP", f"not installed: {', '.join(missing)}")
        return
    encoding = bench.encoding(bench.model, "fp16")
    texts = mixed_workload(bench, encoding).texts
    _, setting = best_settings(bench, encoding, texts, encoding.tokenize(texts))
    calls = {"in process": lambda: encoding.encode_texts(texts, *setting)}
    seconds = statistics.median(in_turn(calls, bench.sizes.text_rounds)["in process"])
    in_process = len(texts) / seconds
    yield Figure("in process, mixed, with tokenising", in_process, "texts/s")
    rates = Rates()
    for workers in bench.sizes.workers:
        if workers > 1 and 2 * workers > bench.cores:
            yield not_measured(with_workers(workers), f"there are {bench.cores} cores")
            continue
        details = serve_and_ask(bench, texts, workers, setting[0])
        for kind, one in details.items():
            rates.found.setdefault(kind, {})[workers] = one["texts_per_second"]
        yield workers_figure(workers, details)
    yield from summary(bench, rates, in_process)


def serve_and_ask(
    bench: Bench, texts: Sequence[str], workers: int, budget: int
) -> dict[Kind, dict[str, float]]:
    """Start the service, load it with every kind of request, and stop it."""
    from benchmarks.harness.servers import headscope, running

    flags = ["--device", bench.options.device, "--max-batch-tokens", str(budget)]
    flags += ["--max-queue-tokens", str(QUEUE_TOKENS)]
    if workers > 1:
        flags += ["--workers", str(workers)]
    folder = bench.artifact(bench.model, "fp16").folder
    server = headscope(f"gpu-{workers}", "fp16", folder, flags)
    with running(server, texts[0]) as started:
        return {
            (count, form): ask(bench, started, texts, count, form)
            for count in bench.sizes.request_texts
            for form in FORMS
        }


def ask(
    bench: Bench, started: Running, texts: Sequence[str], count: int, form: str
) -> dict[str, float]:
    """Load the service with one kind of request, from all processes that the cores allow."""
    from benchmarks.harness.servers import PATIENCE_SECONDS
    from testing.generators import check_right, generate_at_once
    from testing.load import Job

    generators = max(1, min(MOST_GENERATORS, bench.cores // CORES_PER_GENERATOR))
    connections = max(1, bench.sizes.connections // generators)
    jobs = [
        Job(
            started.port,
            [("/encode", body) for body in bodies(texts, count, n)],
            {"accept": FORMS[form]},
            connections=connections,
            seconds=bench.sizes.load_seconds,
            warm_up_seconds=WARM_UP * bench.sizes.load_seconds,
            patience_seconds=PATIENCE_SECONDS,
        )
        for n in range(generators)
    ]
    results = [check_right(one) for one in generate_at_once(jobs)]
    latencies = [ms for one in results for ms in one.latencies_ms]
    span = max(one.ended for one in results) - min(one.started for one in results)
    return {
        "texts_per_second": count * len(latencies) / span,
        "requests": len(latencies),
        "p50_ms": float(np.percentile(latencies, 50)),
        "p99_ms": float(np.percentile(latencies, 99)),
        "client_cores": sum(one.cpu_seconds for one in results) / span,
    }


def bodies(texts: Sequence[str], count: int, generator: int) -> list[dict[str, object]]:
    """Return requests of `count` texts, different for each generator as far as the texts reach."""
    requests = []
    for number in range(BODIES):
        start = (generator * BODIES + number) * count
        some = [texts[(start + i) % len(texts)] for i in range(count)]
        requests.append({"inputs": some, "outputs": ["pooled"], "truncate": True})
    return requests


def workers_figure(workers: int, details: Mapping[Kind, Mapping[str, float]]) -> Figure:
    rates = [
        f"{count} × {form} {one['texts_per_second']:,.0f}" for (count, form), one in details.items()
    ]
    return Figure(
        with_workers(workers),
        float(max(one["texts_per_second"] for one in details.values())),
        "texts/s at most",
        note=", ".join(rates),
        details={f"{count} × {form}": dict(one) for (count, form), one in details.items()},
    )


def summary(bench: Bench, rates: Rates, in_process: float) -> Iterator[Figure]:
    """Yield the figures that have goals: single texts, and the largest requests in each form."""
    for form in FORMS:
        rate, workers = rates.best((bench.sizes.request_texts[0], form))
        figure = Figure(f"one text a request, {form}", rate, "texts/s", note=with_workers(workers))
        yield bench.aim(figure, SINGLE)
    most = bench.sizes.request_texts[-1]
    for form in FORMS:
        rate, workers = rates.best((most, form))
        note = f"{with_workers(workers)}, {rate:,.0f} texts/s"
        name = f"{most} texts a request, {form}"
        figure = Figure(name, rate / in_process, "of in process", note=note)
        yield bench.aim(figure, IN_PROCESS) if form == "safetensors" else figure


def with_workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
