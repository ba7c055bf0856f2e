"""Process start to first right embedding, and peak memory under load, beside sentence-transformers.

Run: python -m benchmarks.startup [--rounds N]. Rounds are taken in turn; medians and ratios.
The first reply counts only if its vector is sentence-transformers' (cosine ≥ 0.99999).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import psutil

from benchmarks.servers import free_port
from model.sources import locate
from service.artifacts import open_artifact
from service.settings import Settings

TEXT = "The animal didn't cross the street because it was too tired"
BASELINE = """
import json, sys
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
print(json.dumps(model.encode([sys.argv[2]])[0].tolist()), flush=True)
print(next(l.split()[1] for l in open("/proc/self/status") if l.startswith("VmHWM")))
"""
LOAD_TEXTS, LOAD_CONNECTIONS = 1000, 16


def sentence_transformers(folder: str) -> tuple[float, float, np.ndarray]:
    """Seconds to the first embedding, peak MiB, and the vector."""
    started = time.perf_counter()
    command = [sys.executable, "-c", BASELINE, folder, TEXT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        vector = json.loads(process.stdout.readline())
        seconds = time.perf_counter() - started
        peak = int(process.stdout.readline()) / 1024
    return seconds, peak, np.array(vector)


@contextlib.contextmanager
def service() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    port = free_port()
    command = [sys.executable, "-m", "service", "serve", "--port", str(port)]
    with subprocess.Popen([*command, "--log-level", "error"]) as process:
        try:
            yield f"http://127.0.0.1:{port}", process
        finally:
            process.terminate()


def first_reply(url: str) -> np.ndarray:
    body = {"inputs": TEXT, "outputs": ["pooled"]}
    while True:
        with contextlib.suppress(httpx.TransportError):
            reply = httpx.post(f"{url}/encode", json=body)
            if reply.status_code == 200:
                return np.array(reply.json()["results"][0]["pooled"])
        time.sleep(0.005)


def load(url: str) -> None:
    """Texts of 1 to 250 tokens, and one /attention of all heads in 50 requests."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 250, LOAD_TEXTS)
    with (
        httpx.Client(base_url=url, timeout=120) as client,
        concurrent.futures.ThreadPoolExecutor(LOAD_CONNECTIONS) as pool,
    ):

        def ask(item: tuple[int, int]) -> None:
            number, length = item
            route = "/attention" if number % 50 == 0 else "/encode"
            headers = {"accept": "application/vnd.safetensors"}
            body = {"inputs": " ".join(["word"] * int(length))}
            client.post(route, json=body, headers=headers).raise_for_status()

        list(pool.map(ask, enumerate(lengths)))


def peak_mebibytes(process: subprocess.Popen[bytes]) -> float:
    root = psutil.Process(process.pid)
    peak = 0
    for one in (root, *root.children(recursive=True)):
        status = Path(f"/proc/{one.pid}/status").read_text(encoding="ascii")
        peak += int(status.partition("VmHWM:")[2].split()[0])
    return peak / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    settings = Settings()
    open_artifact(settings)
    folder = str(locate(settings.model, settings.cache_folder, settings.hub_endpoint, print))
    ours: dict[str, list[float]] = {"seconds": [], "idle": [], "peak": []}
    theirs: dict[str, list[float]] = {"seconds": [], "peak": []}
    for _ in range(options.rounds):
        seconds, peak, expected = sentence_transformers(folder)
        theirs["seconds"].append(seconds)
        theirs["peak"].append(peak)
        started = time.perf_counter()
        with service() as (url, process):
            vector = first_reply(url)
            ours["seconds"].append(time.perf_counter() - started)
            cosine = float(vector @ expected) / float(
                np.linalg.norm(vector) * np.linalg.norm(expected)
            )
            if cosine < 0.99999:
                raise SystemExit(f"the first reply is wrong: cosine {cosine}")
            ours["idle"].append(peak_mebibytes(process))
            load(url)
            ours["peak"].append(peak_mebibytes(process))
    pairs = zip(theirs["seconds"], ours["seconds"], strict=True)
    ratios = [other / own for other, own in pairs]
    median = statistics.median
    print(
        f"start to first right reply   {median(ours['seconds']):.2f} s "
        f"({min(ours['seconds']):.2f} to {max(ours['seconds']):.2f})"
    )
    print(
        f"sentence-transformers        {median(theirs['seconds']):.2f} s, "
        f"{median(ratios):.1f} times as long (median of the rounds' ratios)"
    )
    print(
        f"peak memory, all processes   {median(ours['idle']):.0f} MiB after the first reply, "
        f"{median(ours['peak']):.0f} MiB after the load"
    )
    print(
        f"sentence-transformers        {median(theirs['peak']):.0f} MiB after the first embedding"
    )


if __name__ == "__main__":
    main()
