"""Server processes: waiting, stopping, killing with all children, and reading the log."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from testing.process import Service, StartError, clean_environment, free_port

SERVER = """
import http.server, subprocess, sys, time
print("standing by", flush=True)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
class Handler(http.server.BaseHTTPRequestHandler):
    asked = 0
    def do_GET(self):
        Handler.asked += 1
        self.send_response(503 if Handler.asked < 3 else 200)
        self.send_header("content-length", "0")
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def python(code: str, *arguments: str, stdin: bytes = b"", **variables: str) -> Service:
    port = free_port()
    command = [sys.executable, "-c", code, *(arguments or [str(port)])]
    return Service(command, port, stdin=stdin, environment=clean_environment(**variables))


def test_a_free_port_is_kept_for_a_server() -> None:
    ports = [free_port() for _ in range(20)]
    assert len({*ports}) == 20
    for port in ports:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        socket.create_server(("127.0.0.1", port)).close()


def test_a_server_is_waited_for_and_killed_with_its_children() -> None:
    with python(SERVER) as service:
        service.wait_until_ready()
        assert service.log.count('"GET /health/ready HTTP/1.1" 503') == 2
        assert service.log.startswith("standing by\n")
        (child,) = service.children
        service.send(signal.SIGSTOP)
    assert service.process.returncode == -signal.SIGKILL
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)


def test_a_server_is_stopped() -> None:
    with python(SERVER) as service:
        service.wait_until_ready()
        assert service.stop() == -signal.SIGTERM


def test_one_that_does_not_stop() -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('x', flush=True)"
    code += "; time.sleep(60)"
    with python(code) as service:
        service.wait_until(lambda: "x" in service.log)
        with pytest.raises(subprocess.TimeoutExpired):
            service.stop(seconds=0.1)
    assert service.process.returncode == -signal.SIGKILL


def test_one_that_ends_says_why() -> None:
    with (
        python("import sys; sys.exit('no luck')") as service,
        pytest.raises(StartError, match=r"ended with 1: no luck"),
    ):
        service.wait_until_ready()


def test_one_that_is_silent() -> None:
    with (
        python("import time; print('hm', flush=True); time.sleep(60)") as service,
        pytest.raises(StartError, match=r"no right reply in 0\.5 s"),
    ):
        service.wait_until(service.ready, seconds=0.5)


def test_what_a_process_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCOPE_PORT", "1")
    code = "import os, sys; print(sys.stdin.read(), sorted(os.environ))"
    with python(code, stdin=b"the input", TMPDIR=str(tmp_path)) as service:
        service.process.wait(60)
        assert service.log.startswith("the input ")
        assert "'TMPDIR'" in service.log
        assert "HEADSCOPE_" not in service.log
