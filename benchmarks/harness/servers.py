"""Servers to measure: Headscope and its peers, started, checked, paused and stopped alike.

Only the server being measured runs; SIGSTOP pauses the others, since LitServe polls with a tenth of
a core, and the threads of idle runtimes may spin.
"""

from __future__ import annotations

import contextlib
import http.client
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.calibrate import Precision
from testing.blocking import Session
from testing.load import Job, Result, check_right, generate
from testing.process import Service, StartError, clean_environment, free_port

STOP_SECONDS = 20.0
PATIENCE_SECONDS = 600.0
"""Seconds to wait for a reply; many, since the slowest server under the largest load is slow."""


@dataclass(frozen=True)
class Server:
    """Command that starts a server, and its request for one text's vector."""

    name: str
    precision: Precision
    command: Callable[[int], list[str]]
    """Function from the port to the command line."""
    path: str
    body: Callable[[str], dict[str, object]]
    vector: Callable[[Any], list[float]]
    """Function from the reply's JSON to the vector."""


def artifact_of(precision: Precision, checkpoint: Path | None = None) -> Path:
    """Return the export of a checkpoint or the default model in the service's cache.

    A missing export is made.
    """
    command = [sys.executable, "-m", "service", "export", "--precision", precision]
    if checkpoint is not None:
        command += ["--model", str(checkpoint)]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Path(found.stdout.strip())


def headscope(name: str, precision: Precision, artifact: Path, flags: Sequence[str] = ()) -> Server:
    """Return Headscope as the server of an artifact."""
    start = [sys.executable, "-m", "service", "serve", "--artifact", str(artifact)]
    start += ["--log-level", "error", *flags]
    return Server(
        name=name,
        precision=precision,
        command=lambda port: [*start, "--port", str(port)],
        path="/encode",
        body=lambda text: {"inputs": text, "outputs": ["pooled"], "truncate": True},
        vector=lambda reply: reply["results"][0]["pooled"],
    )


class Running(Service):
    """Running server."""

    def __init__(self, server: Server) -> None:
        port = free_port()
        super().__init__(
            server.command(port), port, environment=clean_environment(DO_NOT_TRACK="1")
        )
        self.server = server

    def answers(self, text: str) -> bool:
        """Return whether the server returns a text's vector."""
        with contextlib.suppress(OSError, http.client.HTTPException, StartError):
            self.vectors([text])
            return True
        return False

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors `[text, feature]`, one request each.

        Raises:
            StartError: a reply's status is not 200.

        """
        vectors = []
        with Session(self.port) as session:
            for text in texts:
                reply = session.ask(self.server.path, self.server.body(text))
                if reply.status != http.HTTPStatus.OK:
                    raise StartError(f"{self.server.name} answers {reply.status}")
                vectors.append(self.server.vector(reply.json()))
        return np.array(vectors)

    def requests(self, texts: Sequence[str]) -> list[tuple[str, object]]:
        """Return a request for each text."""
        return [(self.server.path, self.server.body(text)) for text in texts]

    def load(
        self,
        requests: Sequence[tuple[str, object]],
        connections: int,
        rate: float | None = None,
        headers: dict[str, str] | None = None,
    ) -> Result:
        """Send all requests from a load generator; in open loop if there is a rate.

        Raises:
            LoadError: a reply's status is not 200.

        """
        job = Job(
            self.port,
            list(requests),
            headers or {},
            connections=connections,
            rate=rate,
            patience_seconds=PATIENCE_SECONDS,
            resend=True,
        )
        return check_right(generate(job))


@contextlib.contextmanager
def running(server: Server, text: str) -> Iterator[Running]:
    """Run a server for the block, once it has returned a text's vector; stop it at the end.

    Raises:
        StartError: the server does not return a vector.

    """
    with Running(server) as started:
        started.wait_until(lambda: started.answers(text))
        yield started
        started.send(signal.SIGCONT)
        started.send(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.process.wait(STOP_SECONDS)
