"""Who takes part: every system started, checked and made into ways; who cannot is named."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.calibrate import Precision
from benchmarks.inprocess import InProcess, SentenceTransformersInProcess
from benchmarks.peers.install import InstallError
from benchmarks.servers import (
    Running,
    Server,
    ServerFailedError,
    artifact_of,
    headscope,
    infinity,
    litserve,
    running,
)
from benchmarks.ways import Way, in_process, over_http

BASELINE = "sentence-transformers"
PEER = "Infinity, batches of 8"
COSINES: Mapping[Precision, float] = {"fp32": 0.9999, "bf16": 0.999, "int8": 0.95}
"""The least that a right vector has, to sentence-transformers'."""
CHECKED = 8


@dataclass
class Lineup:
    """The ways that are measured, and what was found out before."""

    ways: list[Way] = field(default_factory=list)
    cosines: dict[str, float] = field(default_factory=dict)
    """Of each server's vectors, the least."""
    absent: dict[str, str] = field(default_factory=dict)
    """The peers that could not be installed or started, and why, in a line."""


def line_up(
    baseline: SentenceTransformersInProcess,
    checkpoint: Path,
    precisions: Sequence[Precision],
    connections: Sequence[int],
    texts: Sequence[str],
    stack: contextlib.ExitStack,
) -> Lineup:
    """Start everything that is to be measured; the servers are paused, and end with the stack.

    Raises:
        ServerFailedError: ours does not start, or a vector of any is wrong.

    """
    lineup = Lineup([in_process(BASELINE, "fp32", baseline)])
    expected = baseline.vectors(list(texts[:CHECKED]))

    def join(server: Server) -> None:
        started = stack.enter_context(running(server, texts[0]))
        lineup.cosines[server.name] = check(started, texts[:CHECKED], expected)
        started.send(signal.SIGSTOP)
        lineup.ways += over_http(started, connections)

    peers: dict[str, Callable[[str], Server]] = {
        PEER: lambda name: infinity(name, checkpoint, ["--batch-size", "8"]),
        "Infinity": lambda name: infinity(name, checkpoint),
        "LitServe": lambda name: litserve(name, checkpoint),
    }
    for name, peer in peers.items():
        try:
            join(peer(name))
        except (InstallError, ServerFailedError) as error:
            lineup.absent[name] = str(error)
    for precision in precisions:
        name, artifact = f"Headscope {precision}", artifact_of(precision)
        lineup.ways.append(in_process(name, precision, InProcess(artifact)))
        join(headscope(name, precision, artifact))
    return lineup


def check(started: Running, texts: Sequence[str], expected: np.ndarray) -> float:
    """The least cosine between a server's vectors and the right ones.

    Raises:
        ServerFailedError: it is too small for the precision.

    """
    found = started.vectors(texts)
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    least = float(((found * expected).sum(axis=1) / norms).min())
    if not least >= COSINES[started.server.precision]:
        raise ServerFailedError(f"{started.server.name} gives other vectors: cosine {least:.5f}")
    return least
