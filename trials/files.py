"""`headscope encode` over many texts: killed and begun again, its memory, and its rate.

Held against an undisturbed run of the same command, against a run of a hundredth of the texts, and
against the same texts in this process without files, in turn. An hour at full scale on two cores.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness.service import InProcess, default_artifact
from benchmarks.harness.texts import read_workload
from model.artifact.manifest import Artifact
from service.engines.onnx import OnnxEngine
from service.files.options import Encoding, FileOptions
from service.files.run import run
from service.settings import Settings
from trials.gates import Gate, Scale, at_least, at_most, exactly

KILLS, SEED = 3, 0
MOST_MEMORY, LEAST_RATE = 1.15, 0.95
START_SECONDS = (1.0, 4.0)
"""The first kill: before the first text a process reads its input and loads the engine."""


def write_texts(path: Path, count: int) -> list[str]:
    """Different texts of documentation, each with its number."""
    some = read_workload(None, count)
    texts = [f"{number} {some[number % len(some)]}" for number in range(count)]
    with path.open("w", encoding="utf-8") as file:
        for number, text in enumerate(texts):
            file.write(json.dumps({"id": number, "text": text}) + "\n")
    return texts


class Run:
    """The command in a process of its own."""

    def __init__(self, artifact: Artifact, source: Path, out: Path) -> None:
        folder = ["--artifact", str(artifact.folder)]
        command = [sys.executable, "-m", "service", "encode", str(source), "--out", str(out)]
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            [*command, *folder, "--truncate", "--device", "cpu"], stderr=subprocess.PIPE
        )

    def ended(self) -> tuple[float, int]:
        """Return the seconds of the run, and its maximum resident bytes.

        Raises:
            RuntimeError: it failed.

        """
        assert self._process.stderr is not None
        said = self._process.stderr.read().decode()
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        if self._process.returncode:
            raise RuntimeError(f"headscope encode failed: {said}")
        return time.monotonic() - self._began, usage.ru_maxrss * 1024

    def killed(self, after_seconds: float) -> bool:
        """Kill it; whether it still ran."""
        time.sleep(after_seconds)
        running = self._process.poll() is None
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()
        return running


def file_kills(scale: Scale) -> list[Gate]:
    """Killed at random moments, it gives the bytes of an undisturbed run; memory is constant."""
    artifact, chance = default_artifact(), random.Random(SEED)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, few = folder / "texts.jsonl", folder / "few.jsonl"
        write_texts(source, scale.of(100_000, 4000))
        write_texts(few, 1000)
        _, least = Run(artifact, few, folder / "few.parquet").ended()
        whole, out = folder / "whole.parquet", folder / "killed.parquet"
        seconds, most = Run(artifact, source, whole).ended()
        running = 0
        for number in range(KILLS):
            share = seconds / (KILLS + 1) * chance.uniform(0.3, 1)
            after = share if number else chance.uniform(*START_SECONDS)
            running += Run(artifact, source, out).killed(after)
            parts = len([*folder.glob("killed.parquet.part/*.part")])
            print(f"killed after {after:.1f} s, {parts} parts", file=sys.stderr)
        Run(artifact, source, out).ended()
        same = out.read_bytes() == whole.read_bytes()
        left = sorted(path.name for path in folder.iterdir())
    print(f"{most / 2**20:.0f} MiB, of fewer {least / 2**20:.0f} MiB", file=sys.stderr)
    return [
        at_most("memory over that of 1,000 texts", MOST_MEMORY, most / least),
        exactly("killed while it ran", KILLS, running),
        exactly("the bytes of an undisturbed run", expected=True, found=same),
        exactly("nothing is left beside", 5, len(left)),
    ]


def file_rate(scale: Scale) -> list[Gate]:
    """Compare the command's rate without its start to the rate of the same texts without files."""
    artifact = default_artifact()
    plain, engine = InProcess(artifact.folder), OnnxEngine(artifact, "cpu")
    settings, ratios = Settings(artifact=artifact.folder), []
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "rate.jsonl"
        texts = write_texts(source, scale.of(4000, 2000))
        wanted = FileOptions(
            (str(source),),
            Path(name) / "out.parquet",
            encoding=Encoding(truncate=True),
            restart=True,
        )
        for _ in range(scale.of(7, 3)):
            without_files = plain(texts)
            started = time.perf_counter()
            run(wanted, settings, lambda _: None, engine)
            seconds = time.perf_counter() - started
            ratios.append(without_files / seconds)
            rates = f"{len(texts) / without_files:.0f}, {len(texts) / seconds:.0f} texts/s"
            print(f"in process, from files: {rates}", file=sys.stderr)
    found = statistics.median(ratios)
    return [at_least("rate over that in process", LEAST_RATE / scale.slack, found)]
