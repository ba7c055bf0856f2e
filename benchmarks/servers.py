"""The servers that are measured: ours and the peers', started, checked, paused and stopped alike.

Each peer has the configuration that was best for it on two cores, all in float32:

    Infinity    its torch engine, batches of 8. At its default of 32 it reaches six tenths of that,
                since unlike texts are padded to one length; it is measured both ways. Attention is
                PyTorch's fused one: BetterTransformer, which needs older versions of everything, is
                no faster here. No telemetry.
    LitServe    sentence-transformers behind it, see `peers.litserve_server`.

Only the server that is measured runs; the others are stopped by a signal meanwhile, since LitServe
polls with a tenth of a core, and every runtime's threads have their own idea of being idle.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.calibrate import Precision
from benchmarks.peers.install import ENVIRONMENTS, python_of

START_SECONDS, STOP_SECONDS = 120, 20
OFFLINE = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
PEER_SERVER = Path(__file__).parent / "peers" / "litserve_server.py"


class ServerFailedError(Exception):
    """A server did not start, or does not answer; the last line it wrote."""


@dataclass(frozen=True)
class Server:
    """How to start a server and what to ask it for one text's vector."""

    name: str
    precision: Precision
    command: Callable[[int], list[str]]
    """Given a port."""
    path: str
    body: Callable[[str], dict[str, object]]
    vector: Callable[[Any], list[float]]
    """From its reply."""


def artifact_of(precision: Precision) -> Path:
    """The exported folder of a precision, from the service's cache; exported if need be."""
    command = [sys.executable, "-m", "service", "export", "--precision", precision]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Path(found.stdout.strip())


def headscope(name: str, precision: Precision, artifact: Path, flags: Sequence[str] = ()) -> Server:
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


def infinity(name: str, checkpoint: Path, flags: Sequence[str] = ()) -> Server:
    python = str(python_of("infinity"))
    start = [python, "-m", "infinity_emb.cli", "v2", "--model-id", str(checkpoint), *flags]
    start += ["--engine", "torch", "--device", "cpu", "--no-bettertransformer"]
    start += ["--no-model-warmup", "--served-model-name", "model", "--host", "127.0.0.1"]
    return Server(
        name=name,
        precision="fp32",
        command=lambda port: [*start, "--port", str(port)],
        path="/embeddings",
        body=lambda text: {"input": [text], "model": "model"},
        vector=lambda reply: reply["data"][0]["embedding"],
    )


def litserve(name: str, checkpoint: Path) -> Server:
    start = [str(python_of("litserve")), str(PEER_SERVER), str(checkpoint)]
    return Server(
        name=name,
        precision="fp32",
        command=lambda port: [*start, str(port)],
        path="/predict",
        body=lambda text: {"input": text},
        vector=lambda reply: reply["embedding"],
    )


class Running:
    """A started server, all of its processes in one group of their own."""

    def __init__(self, server: Server, log: Path) -> None:
        self.server = server
        port = free_port()
        self.url = f"http://127.0.0.1:{port}{server.path}"
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                server.command(port),
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **OFFLINE},
                start_new_session=True,
            )

    def wait(self, text: str) -> None:
        """Until the server answers.

        Raises:
            ServerFailedError: it ends instead, or takes too long.

        """
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(httpx.TransportError, httpx.HTTPStatusError):
                self.vectors([text])
                return
            time.sleep(0.05)
        raise ServerFailedError(self._last_words())

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        """[text, feature], a request each."""
        found = []
        with httpx.Client(timeout=START_SECONDS, trust_env=False) as client:
            for text in texts:
                reply = client.post(self.url, json=self.server.body(text)).raise_for_status()
                found.append(self.server.vector(reply.json()))
        return np.array(found)

    def send(self, number: signal.Signals) -> None:
        """Signal every process of the group; SIGSTOP and SIGCONT pause and resume."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def stop(self) -> None:
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        self.send(signal.SIGKILL)
        self.process.wait()

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it does not answer, and wrote nothing"


@contextlib.contextmanager
def running(server: Server, text: str) -> Iterator[Running]:
    """A server that has answered once.

    Raises:
        ServerFailedError: it did not.

    """
    ENVIRONMENTS.mkdir(exist_ok=True)
    started = Running(server, ENVIRONMENTS / f"{server.name}.log")
    try:
        started.wait(text)
        yield started
    finally:
        started.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
