"""Metrics that processes share, and of processes themselves."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.mmap_dict import MmapedDict

from service.telemetry.shared import FIRST_BYTES, AllocatedDict, ServiceProcesses
from testing.disks import small_disk
from testing.process import run_python
from tests.service.logged import Log

SERIES = [f"series {n}{n % 9 * 'x'}" for n in range(3 * FIRST_BYTES["counter"] // 32)]
"""Series with every padding, more than the first size of a file holds."""
Opened = Callable[[Path], AllocatedDict]
COUNTING = """
import sys
from pathlib import Path
from service.telemetry.metrics import Metrics
from service.telemetry.shared import share

share(0)
metrics = Metrics(Path(sys.argv[1]))
metrics.of_model("small")
filler = Path(sys.argv[1], "filler").open("wb", buffering=0)
try:
    while True:
        filler.write(bytes(4096))
except OSError as error:
    print(error.strerror)
for number in range(3000):
    metrics.registry.requests.labels(f"/{number}", "200").inc()
    metrics.registry.request_seconds.labels(f"/{number}").observe(1)
print(metrics.render().count(b"headscope_requests_total{"))
"""


def holes(path: Path) -> int:
    """Return the bytes of a file that the file system has not allocated."""
    found = path.stat()
    return max(0, found.st_size - 512 * found.st_blocks)


def values(path: Path) -> dict[str, float]:
    """Return a file's series as another process reads them."""
    read = MmapedDict.read_all_values_from_file(str(path))  # type: ignore[no-untyped-call]
    return {key.strip(): value for key, value, *_ in read}


def counting(folder: Path) -> subprocess.CompletedProcess[str]:
    """Update a worker's metrics in a process of its own, which a signal would end."""
    return run_python("-c", COUNTING, folder, PROMETHEUS_MULTIPROC_DIR=str(folder))


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Open files, and close them at the end."""
    with contextlib.ExitStack() as stack:

        def open_(path: Path) -> AllocatedDict:
            return stack.enter_context(contextlib.closing(AllocatedDict(str(path))))

        yield open_


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every allocation fail, as on a full file system."""

    def fallocate(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", fallocate)


def test_a_file_has_no_holes_however_it_grows(opened: Opened, tmp_path: Path) -> None:
    path = tmp_path / "counter_0.db"
    found = opened(path)
    assert (path.stat().st_size, holes(path)) == (FIRST_BYTES["counter"], 0)
    for number, name in enumerate(SERIES):
        assert found.read_value(name) == (0.0, 0.0)
        found.write_value(name, number, 0.0)
        assert holes(path) == 0
    assert path.stat().st_size > 2 * FIRST_BYTES["counter"]
    assert values(path) == {name: number for number, name in enumerate(SERIES)}
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_a_worker_that_is_started_again_goes_on(opened: Opened, tmp_path: Path) -> None:
    path = tmp_path / "counter_0.db"
    before = opened(path)
    before.write_value("unknown until now", 1.0, 0.0)
    for name in SERIES:
        before.read_value(name)
        before.write_value(name, 5.0, 0.0)
    size = path.stat().st_size
    after = opened(path)
    assert path.stat().st_size == size
    assert {after.read_value(name) for name in SERIES} == {(5.0, 0.0)}
    assert "unknown until now" not in values(path)


@pytest.mark.usefixtures("full")
def test_without_room_there_is_no_file_and_the_reason_is_said(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot store its metrics") as refused:
        AllocatedDict(str(tmp_path / "counter_0.db"))
    assert str(refused.value) == (
        f"a worker cannot store its metrics: cannot write to {tmp_path}: No space left on device"
    )
    assert list(tmp_path.iterdir()) == []


def test_without_room_to_grow_what_was_counted_still_is(
    opened: Opened, tmp_path: Path, log: Log, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "counter_0.db"
    found = opened(path)
    request.getfixturevalue("full")
    for name in SERIES:
        found.read_value(name)
        found.write_value(name, 1.0, 0.0)
    kept = values(path)
    assert 0 < len(kept) < len(SERIES)
    assert list(kept) == SERIES[: len(kept)]
    found.write_value(SERIES[0], 7.0, 0.0)
    assert values(path)[SERIES[0]] == 7.0
    assert holes(path) == 0
    (line,) = log.text.splitlines()
    assert line.endswith(
        f"new metric series are not counted: cannot write to {tmp_path}: No space left on device"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("size", "starts"), [("64k", False), ("4m", True)])
def test_a_full_file_system_ends_no_process_by_a_signal(
    tmp_path: Path, size: str, starts: bool
) -> None:
    with small_disk(tmp_path, size) as problem:
        if problem:
            pytest.skip(f"no file system can be mounted here: {problem}")
        done = counting(tmp_path)
    if not starts:
        assert done.returncode == 1
        assert "a worker cannot store its metrics" in done.stderr.splitlines()[-1]
        return
    assert done.returncode == 0, done.stderr
    reported, counted = done.stdout.split("\n")[:2]
    assert reported == "No space left on device"
    assert 100 < int(counted) < 3000
    assert "new metric series are not counted" in done.stderr


CHILD = "import subprocess, sys, time; x = bytearray(20_000_000)\n"
STAYS = "print(1, flush=True); time.sleep(60)"
GRANDCHILD = "subprocess.run([sys.executable, '-c', 'sum(range(4_000_000))'], check=True)\n"


@contextlib.contextmanager
def child(code: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", code + STAYS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def collected(root: int) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(ServiceProcesses(root))
    return {sample.name: sample.value for family in registry.collect() for sample in family.samples}


def test_processor_time_never_falls() -> None:
    with child(CHILD + GRANDCHILD) as process:
        mine = psutil.Process(process.pid).cpu_times()
        expected = mine.user + mine.system + mine.children_user + mine.children_system
        found = collected(process.pid)["process_cpu_seconds_total"]
        assert found == pytest.approx(expected, abs=0.05)
        seen = [collected(os.getpid())["process_cpu_seconds_total"]]
        process.send_signal(signal.SIGKILL)
        for _ in range(5):
            seen.append(collected(os.getpid())["process_cpu_seconds_total"])
            time.sleep(0.01)
        process.wait()
        seen.append(collected(os.getpid())["process_cpu_seconds_total"])
    assert seen == sorted(seen)
    assert seen[0] > found
