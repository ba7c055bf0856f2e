"""A real server process on the embedded default model, and the reference beside it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.e2e


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(url: str, process: subprocess.Popen[bytes], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health/ready").status_code == 200:
                return
        time.sleep(0.05)
    raise RuntimeError("the server did not become ready")


@contextlib.contextmanager
def running(*flags: str) -> Iterator[str]:
    """A `headscope serve` process; gives its URL and sees to it that it stops cleanly."""
    port = free_port()
    command = [sys.executable, "-m", "service", "serve", "--port", str(port), *flags]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADSCOPE_")}
    with subprocess.Popen(command, env=environment) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(url, process)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(timeout=40)
            finally:  # what does not stop fails the test, and does not keep it for ever
                process.kill()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The default service, for a machine that may be busy."""
    with running("--request-timeout-seconds", "300", "--queue-timeout-seconds", "300") as url:
        yield url


@pytest.fixture(scope="session")
def client(server: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server, timeout=120) as client:
        yield client


@pytest.fixture(scope="session")
def transformers_reference(minilm_checkpoint: Path) -> Any:
    """transformers' tokenizer and eager float32 model of the default checkpoint."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(minilm_checkpoint)
    model = AutoModel.from_pretrained(
        minilm_checkpoint, attn_implementation="eager", dtype=torch.float32
    )
    return tokenizer, model.eval()
