"""Systems to compare: each is started, checked and made into ways; absent ones are listed."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.calibrate import Precision
from benchmarks.harness.servers import Server, artifact_of, headscope, running
from benchmarks.harness.service import InProcess
from benchmarks.harness.vectors import OtherVectorsError, check_vectors
from benchmarks.harness.ways import Way, in_process, over_http
from benchmarks.peers.in_process import PEERS, working
from benchmarks.peers.install import InstallError
from benchmarks.peers.sentence_transformers import SentenceTransformersPeer
from benchmarks.peers.servers import SERVERS
from testing.process import StartError

BASELINE = "sentence-transformers"
COSINES: Mapping[Precision, float] = {"fp32": 0.9999, "bf16": 0.999, "int8": 0.95}
"""Minimum cosine between a correct vector and sentence-transformers'."""
CHECKED = 32


@dataclass(frozen=True)
class Wanted:
    """Systems to measure, and how."""

    precisions: Sequence[Precision]
    """Precisions of Headscope."""
    connections: Sequence[int]
    """Numbers of connections over HTTP; if empty, servers are left out."""
    peers: Collection[str]
    """Names in `PEERS` and `SERVERS`."""


@dataclass
class Lineup:
    """Ways to measure, and the peers that cannot be measured."""

    ways: list[Way] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    """Reason, in one line, why each absent peer could not be installed, started or compared."""


def line_up(
    baseline: SentenceTransformersPeer,
    checkpoint: Path,
    wanted: Wanted,
    texts: Sequence[str],
    stack: contextlib.ExitStack,
) -> Lineup:
    """Start every system to measure; the servers are paused, and end with the stack.

    Args:
        baseline: system in float32 whose vectors are right.
        checkpoint: folder of the model.
        wanted: systems to measure.
        texts: workload, of which the first texts are compared.
        stack: context that ends the processes.

    Raises:
        StartError: Headscope does not start.
        OtherVectorsError: a vector of Headscope is wrong.

    """
    checked = list(texts[:CHECKED])
    expected = baseline.encode_texts(checked)
    lineup = Lineup([in_process(BASELINE, "fp32", baseline.seconds)])

    def join_worker(name: str) -> None:
        precision = PEERS[name].precision
        with contextlib.ExitStack() as own:  # a failed check ends the process
            worker = own.enter_context(working(name, checkpoint))
            vectors = worker.vectors(checked)
            cosine = check_vectors(name, vectors, expected, COSINES[precision])
            stack.enter_context(own.pop_all())
        lineup.ways.append(in_process(name, precision, worker.seconds, cosine))

    def join_server(server: Server) -> None:
        with contextlib.ExitStack() as own:
            started = own.enter_context(running(server, texts[0]))
            vectors, least = started.vectors(checked), COSINES[server.precision]
            cosine = check_vectors(server.name, vectors, expected, least)
            stack.enter_context(own.pop_all())
        started.send(signal.SIGSTOP)
        lineup.ways += over_http(started, wanted.connections, cosine)

    for name in wanted.peers:
        try:
            if name in PEERS:
                join_worker(name)
            elif wanted.connections:
                join_server(SERVERS[name](name, checkpoint))
        except (InstallError, StartError, OtherVectorsError) as error:
            lineup.absent[name] = str(error).strip().splitlines()[-1]
    for precision in wanted.precisions:
        name, artifact = f"Headscope {precision}", artifact_of(precision, checkpoint)
        ours = InProcess(artifact)
        cosine = check_vectors(name, ours.vectors(checked), expected, COSINES[precision])
        lineup.ways.append(in_process(name, precision, ours, cosine))
        if wanted.connections:
            join_server(headscope(name, precision, artifact))
    return lineup
