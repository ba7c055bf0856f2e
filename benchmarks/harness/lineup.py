"""Systems to compare: each is started, checked and made into ways; absent ones are listed."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.calibrate import Precision
from benchmarks.harness.servers import Server, artifact_of, headscope, running
from benchmarks.harness.service import InProcess
from benchmarks.harness.vectors import OtherVectorsError, check_vectors
from benchmarks.harness.ways import Way, in_process, over_http
from benchmarks.peers.install import InstallError
from benchmarks.peers.sentence_transformers import SentenceTransformersPeer
from benchmarks.peers.servers import infinity, litserve
from testing.process import StartError

BASELINE = "sentence-transformers"
PEER = "Infinity, batches of 8"
COSINES: Mapping[Precision, float] = {"fp32": 0.9999, "bf16": 0.999, "int8": 0.95}
"""Minimum cosine between a correct vector and sentence-transformers'."""
CHECKED = 8


@dataclass
class Lineup:
    """Ways to measure, and the results of the checks before."""

    ways: list[Way] = field(default_factory=list)
    cosines: dict[str, float] = field(default_factory=dict)
    """Smallest cosine of each server's vectors."""
    absent: dict[str, str] = field(default_factory=dict)
    """Reason, in one line, why each absent peer could not be installed, started or compared."""


def line_up(
    baseline: SentenceTransformersPeer,
    checkpoint: Path,
    precisions: Sequence[Precision],
    connections: Sequence[int],
    texts: Sequence[str],
    stack: contextlib.ExitStack,
) -> Lineup:
    """Start every system to measure; the servers are paused, and end with the stack.

    Raises:
        StartError: Headscope does not start.
        OtherVectorsError: a vector of Headscope is wrong.

    """
    lineup = Lineup([in_process(BASELINE, "fp32", baseline.seconds)])
    expected = baseline.encode_texts(list(texts[:CHECKED]))

    def join(server: Server) -> None:
        started = stack.enter_context(running(server, texts[0]))
        vectors, least = started.vectors(texts[:CHECKED]), COSINES[server.precision]
        lineup.cosines[server.name] = check_vectors(server.name, vectors, expected, least)
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
        except (InstallError, StartError, OtherVectorsError) as error:
            lineup.absent[name] = str(error).strip().splitlines()[-1]
    for precision in precisions:
        name, artifact = f"Headscope {precision}", artifact_of(precision)
        lineup.ways.append(in_process(name, precision, InProcess(artifact)))
        join(headscope(name, precision, artifact))
    return lineup
