"""Texts per second, in process and over HTTP, beside sentence-transformers, in turn in one run.

Run: python -m benchmarks.throughput [--workload FILE.jsonl] [--texts N] [--rounds N] [--json FILE]

Each sample stands between two runs of the matrix-product calibrator, so that it can be given as a
share of what the machine could do at that moment. Over HTTP, every text is a request of its own,
over so many connections, from a process of its own; no text is sent twice in a sample.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sentence_transformers import SentenceTransformer

from benchmarks.calibrate import Calibrator, workload_flop
from benchmarks.startup import first_reply, service
from model.artifact import TOKENIZER
from model.sources import locate
from service.app import token_limits
from service.artifacts import open_artifact
from service.backends import Backends
from service.batching import BatchLimits
from service.engines.onnx import OnnxEngine
from service.metrics import Metrics
from service.predictor import Bounds, Predictor
from service.schemas import EncodeRequest
from service.settings import Settings
from service.tokenizer import Options, TextTokenizer

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Samples:
    """What one way of embedding achieved, round by round."""

    texts_per_second: list[float] = field(default_factory=list)
    share: list[float] = field(default_factory=list)
    client_cpu_seconds: list[float] = field(default_factory=list)


def read_workload(path: Path | None, count: int) -> list[str]:
    """Up to so many different texts: lines {"text"} of a file, or this repository's sentences."""
    if path is not None:
        lines = path.read_text(encoding="utf-8").splitlines()
        texts = [json.loads(line)["text"] for line in lines]
    else:
        pages = [ROOT / "LICENSE", *sorted(ROOT.glob("docs/**/*.md")), ROOT / "README.md"]
        joined = " ".join(page.read_text(encoding="utf-8") for page in pages)
        texts = [" ".join(part.split()) for part in re.split(r"(?<=[.:;]) |\n\n", joined)]
        texts = [text for text in texts if text]
    return list(dict.fromkeys(texts))[:count]


class InProcess:
    """The service's own way of a request, without HTTP."""

    def __init__(self, settings: Settings) -> None:
        artifact = open_artifact(settings)
        self.tokenizer = TextTokenizer(
            artifact.path(TOKENIZER), artifact.manifest.sentence, token_limits(settings, artifact)
        )
        self._manifest = artifact.manifest
        self._limits = BatchLimits(settings.max_batch_tokens, settings.max_queue_tokens)
        self._engine = OnnxEngine(artifact, "cpu")

    def __call__(self, texts: list[str]) -> float:
        """Seconds for all texts, in requests of 100."""

        async def run() -> float:
            backends = Backends(self._engine, {}, self._limits, Metrics())
            bounds = Bounds(len(texts), 2**30)
            predictor = Predictor(self._manifest, self.tokenizer, backends, bounds)
            parts = [texts[i : i + 100] for i in range(0, len(texts), 100)]
            started = time.perf_counter()
            await asyncio.gather(
                *(
                    predictor.encode(
                        EncodeRequest(inputs=part, outputs=["pooled"], truncate=True), binary=True
                    )
                    for part in parts
                )
            )
            return time.perf_counter() - started

        return asyncio.run(run())


def over_http(url: str, texts: list[str], connections: int) -> tuple[float, float]:
    """Seconds for all texts, and processor seconds of the client's own process."""
    command = [sys.executable, "-m", "benchmarks.load", url, str(connections)]
    completed = subprocess.run(
        command, input=json.dumps(texts), capture_output=True, text=True, check=True
    )
    seconds, cpu_seconds = json.loads(completed.stdout)
    return seconds, cpu_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", type=Path)
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    settings = Settings()
    texts = read_workload(options.workload, options.texts)
    ours = InProcess(settings)
    lengths = [
        len(text.input_ids) for text in ours.tokenizer.tokenize(texts, Options(truncate=True))
    ]
    folder = locate(settings.model, settings.cache_folder, settings.hub_endpoint, print)
    peer = SentenceTransformer(str(folder), device="cpu")
    calibrator = Calibrator(len(os.sched_getaffinity(0)))

    def theirs(texts: list[str]) -> float:
        started = time.perf_counter()
        peer.encode(texts, show_progress_bar=False)
        return time.perf_counter() - started

    with service() as (url, _):
        first_reply(url)
        ways: dict[str, Callable[[], tuple[float, float]]] = {
            "sentence-transformers": lambda: (theirs(texts), 0.0),
            "in process": lambda: (ours(texts), 0.0),
        }
        for count in options.connections:
            ways[f"HTTP, {count} connections"] = lambda n=count: over_http(url, texts, n)
        samples = sample(ways, calibrator, workload_flop(lengths), len(texts), options.rounds)
    print(table(samples))
    print(
        f"{len(texts)} texts, {sum(lengths)} tokens (median {statistics.median(lengths):g}, "
        f"most {max(lengths)}); medians of {options.rounds} rounds taken in turn"
    )
    if options.json:
        content = {name: vars(found) for name, found in samples.items()}
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def sample(
    ways: dict[str, Callable[[], tuple[float, float]]],
    calibrator: Calibrator,
    flop: float,
    count: int,
    rounds: int,
) -> dict[str, Samples]:
    """Run the ways in turn; each sample's limit is the mean of the calibrations around it."""
    samples = {name: Samples() for name in ways}
    for way in ways.values():
        way()  # once unmeasured: the first run of anything pays for what later ones have
    before = calibrator.flop_per_second()
    for _ in range(rounds):
        for name, way in ways.items():
            seconds, cpu_seconds = way()
            after = calibrator.flop_per_second()
            samples[name].texts_per_second.append(count / seconds)
            samples[name].share.append(flop / seconds / ((before + after) / 2))
            samples[name].client_cpu_seconds.append(cpu_seconds / seconds)
            before = after
    return samples


def table(samples: dict[str, Samples]) -> str:
    """One row a way: texts/s, its spread, × sentence-transformers, share, the client's cost."""
    base = samples["sentence-transformers"].texts_per_second
    rows = [
        "| way | texts/s (least to most) | × sentence-transformers | share of the limit "
        "| client's cores |",
        "|---|---|---|---|---|",
    ]
    for name, found in samples.items():
        rate = found.texts_per_second
        ratio = statistics.median(a / b for a, b in zip(rate, base, strict=True))
        rows.append(
            f"| {name} | {statistics.median(rate):.0f} ({min(rate):.0f} to {max(rate):.0f}) "
            f"| {ratio:.2f} | {statistics.median(found.share):.2f} "
            f"| {statistics.median(found.client_cpu_seconds):.2f} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    main()
