"""Corpus encoded by Ray Data: an actor is killed, then the run, which is then resumed."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from trials import ray_cluster as ray
from trials.gates import Gate, Scale, at_least, exactly
from trials.oracle import WORDS

SEED, ACTORS = 20170612, 2
ACTOR = "ray::MapWorker"
HANG_SECONDS = 1800.0


def write_corpus(folder: Path, files: int, rows: int) -> list[Path]:
    """Write Parquet files of short, numbered texts."""
    source, paths = random.Random(SEED), []
    for number in range(files):
        texts = [" ".join(source.choices(WORDS, k=source.randint(2, 6))) for _ in range(rows)]
        path = folder / f"{number:03}.parquet"
        pq.write_table(
            pa.table({"id": range(number * rows, (number + 1) * rows), "text": texts}), path
        )
        paths.append(path)
    return paths


@contextlib.contextmanager
def encoding(inputs: Path, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command on the running cluster."""
    command = [sys.executable, "-m", "deploy.ray.encode", f"{inputs}/*.parquet", "--out", str(out)]
    environment = os.environ | {"RAY_ADDRESS": ray.address()}
    with subprocess.Popen(
        [*command, "--actors", str(ACTORS)],
        cwd=ray.ROOT,
        env=environment,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until(what: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait until a condition holds while the run goes on.

    Raises:
        RuntimeError: the run has ended, or the condition does not hold in time.

    """
    deadline = time.monotonic() + HANG_SECONDS
    while not what():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the run ended with {process.poll()}, or hangs")
        time.sleep(0.1)


def run(scale: Scale) -> list[Gate]:
    """Encode 100,000 texts, and compare with `headscope encode` of each file."""
    files, rows = 10, scale.of(10_000, 300)
    with tempfile.TemporaryDirectory() as folder, ray.cluster(cpus=ACTORS):
        inputs, out, alone = (Path(folder) / name for name in ("in", "out", "alone"))
        for path in inputs, alone:
            path.mkdir()
        paths = write_corpus(inputs, files, rows)

        def done() -> list[Path]:
            return sorted(out.glob("*.parquet"))

        with encoding(inputs, out) as process:
            until(lambda: any(out.glob("*.part/*.part")), process)
            victim = ray.workers(ACTOR)[0]
            victim.kill()
            until(lambda: len(done()) >= files // 2, process)
        kept = {path: path.stat().st_mtime_ns for path in done()}
        ray.wait_for_end(ACTOR)
        with encoding(inputs, out) as process:
            code = process.wait(HANG_SECONDS)
        again = [path for path, time_ns in kept.items() if path.stat().st_mtime_ns != time_ns]
        for path in paths:
            subprocess.run(
                [sys.executable, "-m", "service", "encode", path, "--out", alone / path.name],
                cwd=ray.ROOT,
                stderr=subprocess.DEVNULL,
                check=True,
            )
        equal = [(alone / p.name).read_bytes() == (out / p.name).read_bytes() for p in paths]
        rows_written = sum(pq.read_metadata(path).num_rows for path in done())
    return [
        exactly("an actor is killed, then the run: exit code of the one that goes on", 0, code),
        exactly("… texts in the outputs", files * rows, rows_written),
        exactly("… files equal to `headscope encode`'s, byte for byte", files, sum(equal)),
        at_least("… files that were finished before", files // 2, len(kept)),
        exactly("… of those, written again", 0, len(again)),
    ]
