"""A peer in another process gives its vectors and seconds, and rests in between."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from benchmarks.peers.in_process import PEERS, Worker
from benchmarks.peers.install import ENVIRONMENTS, HERE
from benchmarks.peers.install import PEERS as INSTALLED
from benchmarks.peers.worker import LOADERS, in_order
from testing.process import StartError

STAND_IN = """
import numpy as np
from benchmarks.peers import worker
def load(checkpoint, work):
    print("a library's greeting")
    return lambda texts, batch: np.array([[len(text), batch] for text in texts])
worker.LOADERS["stand-in"] = load
worker.main("stand-in", "checkpoint", "work", "8")
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    log = tmp_path / "log"
    log.write_text("no such family")
    with subprocess.Popen(
        [sys.executable, "-c", STAND_IN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ENVIRONMENTS.parent,
    ) as process:
        started = Worker(process, log)
        yield started
        started.end()


@pytest.mark.slow
def test_a_worker_computes_and_is_paused(worker: Worker):
    np.testing.assert_array_equal(worker.vectors(["a", "abc"]), [[1, 8], [3, 8]])
    for _ in range(2):
        assert worker.seconds(["a"]) >= 0
        _, status = os.waitpid(worker.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)


@pytest.mark.slow
def test_a_worker_that_ends(worker: Worker):
    psutil.Process(worker.pid).kill()
    with pytest.raises(StartError, match="no such family"):
        worker.vectors(["a"])


def test_vectors_return_to_the_order_of_the_texts():
    found = in_order(np.array([[30], [20], [10]]), [2, 0, 1])
    np.testing.assert_array_equal(found, [[20], [10], [30]])


def test_every_peer_has_a_loader_and_an_environment():
    assert PEERS.keys() == LOADERS.keys()
    assert {peer.environment for peer in PEERS.values()} < set(INSTALLED)
    assert {path.stem for path in HERE.glob("*.txt")} == set(INSTALLED)
