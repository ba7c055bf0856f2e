"""Who takes part: every system started, checked and made into ways; who cannot is named."""

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
    baseline: SentenceTransformersPeer,
    checkpoint: Path,
    precisions: Sequence[Precision],
    connections: Sequence[int],
    texts: Sequence[str],
    stack: contextlib.ExitStack,
) -> Lineup:
    """Start everything that is to be measured; the servers are paused, and end with the stack.

    Raises:
        StartError: ours does not start.
        OtherVectorsError: a vector of ours is wrong.

    """
    lineup = Lineup([in_process(BASELINE, "fp32", baseline.seconds)])
    expected = baseline.encode_texts(list(texts[:CHECKED]))

    def join(server: Server) -> None:
        started = stack.enter_context(running(server, texts[0]))
        found, least = started.vectors(texts[:CHECKED]), COSINES[server.precision]
        lineup.cosines[server.name] = check_vectors(server.name, found, expected, least)
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
