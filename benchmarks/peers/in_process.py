"""Peers in process, each in a process of its own environment, paused unless it computes.

A batch's number of texts is the fastest of 4, 8, 16 and 32 on two cores of an AMD EPYC (Zen 5).
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.calibrate import Precision
from benchmarks.harness.report import write_json
from benchmarks.harness.texts import read_workload
from benchmarks.peers.install import ENVIRONMENTS, python_of, run
from model.sources.files import cache_key
from testing.process import StartError, clean_environment

HERE = Path(__file__).parent
CALIBRATION_TEXTS = 300


@dataclass(frozen=True)
class Peer:
    """Environment of a peer of `worker.LOADERS`, its precision, and the texts of a batch."""

    environment: str
    precision: Precision
    batch: int


PEERS: Mapping[str, Peer] = {
    "sentence-transformers fp32": Peer("sentence_transformers", "fp32", 8),
    "sentence-transformers bf16": Peer("sentence_transformers", "bf16", 8),
    "sentence-transformers ONNX fp32": Peer("sentence_transformers", "fp32", 16),
    "sentence-transformers ONNX int8": Peer("sentence_transformers", "int8", 16),
    "sentence-transformers OpenVINO fp32": Peer("sentence_transformers", "fp32", 16),
    "sentence-transformers OpenVINO bf16": Peer("sentence_transformers", "bf16", 16),
    "sentence-transformers OpenVINO int8": Peer("sentence_transformers", "int8", 16),
    "FastEmbed fp32": Peer("fastembed", "fp32", 8),
    "FastEmbed int8": Peer("fastembed", "int8", 8),
    "CTranslate2 fp32": Peer("ctranslate2", "fp32", 8),
    "CTranslate2 int8": Peer("ctranslate2", "int8", 8),
}


def converted(checkpoint: Path) -> Path:
    """Return the folder of the peers' conversions; convert the checkpoint if it is missing.

    Raises:
        InstallError: the conversion fails.

    """
    work = ENVIRONMENTS / "models" / cache_key(checkpoint, checkpoint.name, "fp32")
    if not (work / "done.json").exists():
        texts = [{"text": text} for text in read_workload(None, CALIBRATION_TEXTS)]
        write_json(work / "calibration" / "train.json", texts)
        python = python_of("sentence_transformers")
        run([str(python), "-P", str(HERE / "convert.py"), str(checkpoint), str(work)])
        write_json(work / "done.json", {"checkpoint": checkpoint.name})
    return work


class Worker:
    """Running peer of `PEERS`."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log
        self.pid = process.pid

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors `[text, feature]`."""
        return np.array(self._ask(texts)["vectors"])

    def seconds(self, texts: list[str]) -> float:
        """Return the seconds for all texts, tokenising included."""
        self._process.send_signal(signal.SIGCONT)
        try:
            return float(self._ask(texts)["seconds"])
        finally:
            self._process.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        """Kill the process; a request that it has not read is dropped."""
        self._process.kill()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def _ask(self, texts: Sequence[str]) -> Any:
        """Return the reply.

        Raises:
            StartError: the process has ended; the message is its log.

        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(list(texts)), file=self._process.stdin, flush=True)
        reply = self._process.stdout.readline()
        if not reply:
            raise StartError(self._log.read_text("utf-8") or f"{self._log} is empty")
        return json.loads(reply)


@contextlib.contextmanager
def working(name: str, checkpoint: Path) -> Iterator[Worker]:
    """Run a peer of `PEERS` for the block; its log goes to `.bench/NAME.log`.

    Raises:
        InstallError: the peer cannot be installed, or the checkpoint cannot be converted.

    """
    peer, work = PEERS[name], converted(checkpoint)
    command = [str(python_of(peer.environment)), "-P", str(HERE / "worker.py"), name]
    command += [str(checkpoint), str(work), str(peer.batch)]
    log = ENVIRONMENTS / f"{name}.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=clean_environment(),
        ) as process,
    ):
        worker = Worker(process, log)
        try:
            yield worker
        finally:
            worker.end()
