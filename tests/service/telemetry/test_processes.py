"""Memory, files and processor time of all processes of a service, against psutil."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
from prometheus_client import CollectorRegistry

from service.telemetry.shared import ServiceProcesses, descendants

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


def test_the_processes_of_a_service() -> None:
    command = f"[sys.executable, '-c', {CHILD + STAYS!r}]"
    code = (
        f"with subprocess.Popen({command}, stdout=subprocess.PIPE) as p:\n p.stdout.readline()\n "
    )
    with child(CHILD + code) as process:
        members = [psutil.Process(process.pid)]
        members += members[0].children(recursive=True)
        assert len(members) == 2
        assert descendants(process.pid) == [members[1].pid]
        found = collected(process.pid)
        resident = sum(member.memory_full_info().pss for member in members)
        assert found["process_resident_memory_bytes"] == pytest.approx(resident, rel=0.1)
        assert found["process_resident_memory_bytes"] > 40_000_000
        virtual = sum(member.memory_info().vms for member in members)
        assert found["process_virtual_memory_bytes"] == pytest.approx(virtual, rel=0.1)
        assert found["process_open_fds"] == sum(member.num_fds() for member in members)
        limits = [member.rlimit(psutil.RLIMIT_NOFILE)[0] for member in members]
        assert found["process_max_fds"] == sum(limits)
        started = members[0].create_time()
        assert found["process_start_time_seconds"] == pytest.approx(started, abs=1.5)
        members[1].kill()


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
