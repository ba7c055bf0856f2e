"""Time to the first correct embedding and peak memory, beside sentence-transformers.

Run: python -m benchmarks.startup [--rounds N]. Rounds are taken in turn; medians and ratios.
The first reply counts only if its vector is sentence-transformers' (cosine ≥ 0.99999).
"""

from __future__ import annotations

import argparse
import http
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.harness.service import default_artifact, default_checkpoint
from benchmarks.harness.timing import median_ratio
from benchmarks.harness.vectors import check_vectors
from testing.blocking import probe
from testing.load import Job, check_right, generate
from testing.memory import MEBIBYTE, family_bytes
from testing.process import Service

TEXT = "The animal didn't cross the street because it was too tired"
BASELINE = """
import json, sys
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
print(json.dumps(model.encode([sys.argv[2]])[0].tolist()), flush=True)
print(next(l.split()[1] for l in open("/proc/self/status") if l.startswith("VmHWM")))
"""
LOAD_TEXTS, LOAD_CONNECTIONS = 1000, 16
LEAST_COSINE = 0.99999


def sentence_transformers(folder: str) -> tuple[float, float, np.ndarray]:
    """Return the seconds to the first embedding, peak MiB, and the vector."""
    started = time.perf_counter()
    command = [sys.executable, "-c", BASELINE, folder, TEXT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        vector = json.loads(process.stdout.readline())
        seconds = time.perf_counter() - started
        peak = int(process.stdout.readline()) / 1024
    return seconds, peak, np.array(vector)


def service() -> Service:
    """Return the default service, with the settings of this environment."""
    return Service.of_headscope("--log-level", "error", environment=os.environ)


def first_vector(started: Service) -> np.ndarray:
    """Return the vector of the first reply."""
    vectors: list[np.ndarray] = []

    def answered() -> bool:
        reply = probe(started.port, "/encode", {"inputs": TEXT, "outputs": ["pooled"]})
        if reply and reply.status == http.HTTPStatus.OK:
            vectors.append(np.array(reply.json()["results"][0]["pooled"]))
        return bool(vectors)

    started.wait_until(answered, poll_seconds=0.005)
    return vectors[0]


def load(port: int) -> None:
    """Send texts of 1 to 250 tokens; one request in 50 is /attention of all heads."""
    lengths = np.random.default_rng(0).integers(1, 250, LOAD_TEXTS)
    requests: list[tuple[str, object]] = [
        (
            "/attention" if number % 50 == 0 else "/encode",
            {"inputs": " ".join(["word"] * int(length))},
        )
        for number, length in enumerate(lengths)
    ]
    headers = {"accept": "application/vnd.safetensors"}
    job = Job(port, requests, headers, connections=LOAD_CONNECTIONS, patience_seconds=120)
    check_right(generate(job))


@dataclass
class Found:
    """Seconds and MiB by round."""

    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    idle_mib: list[float] = field(default_factory=list)
    peak_mib: list[float] = field(default_factory=list)
    their_peak_mib: list[float] = field(default_factory=list)

    def add_round(self, checkpoint: Path) -> None:
        """Measure sentence-transformers, then Headscope.

        Raises:
            OtherVectorsError: the first reply is wrong.

        """
        seconds, peak, expected = sentence_transformers(str(checkpoint))
        self.theirs.append(seconds)
        self.their_peak_mib.append(peak)
        begun = time.perf_counter()
        with service() as started:
            vector = first_vector(started)
            self.ours.append(time.perf_counter() - begun)
            check_vectors("the first reply", vector[None], expected[None], LEAST_COSINE)
            self.idle_mib.append(family_bytes(started.process.pid, "VmHWM") / MEBIBYTE)
            load(started.port)
            self.peak_mib.append(family_bytes(started.process.pid, "VmHWM") / MEBIBYTE)

    def lines(self) -> list[str]:
        """Return the lines to print."""
        median, ours = statistics.median, self.ours
        return [
            f"start to first right reply   {median(ours):.2f} s ({min(ours):.2f} to "
            f"{max(ours):.2f})",
            f"sentence-transformers        {median(self.theirs):.2f} s, "
            f"{median_ratio(self.theirs, ours):.1f} times as long (median of the rounds' ratios)",
            f"peak memory, all processes   {median(self.idle_mib):.0f} MiB after the first reply, "
            f"{median(self.peak_mib):.0f} MiB after the load",
            f"sentence-transformers        {median(self.their_peak_mib):.0f} MiB after the first "
            "embedding",
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    default_artifact()
    checkpoint, measured = default_checkpoint(), Found()
    for _ in range(options.rounds):
        measured.add_round(checkpoint)
    print("\n".join(measured.lines()))


if __name__ == "__main__":
    main()
