"""Server around the application."""

from __future__ import annotations

import gc
import signal
import socket
import sys
from pathlib import Path

import pytest
import uvicorn

from model.artifact.manifest import Artifact
from service.process.server import Server
from service.system.resources import SWITCH_SECONDS
from testing.blocking import RawConnection, Session, ask
from testing.client import request
from testing.metrics import samples, total
from testing.process import Service, free_port


def test_a_server_runs_with_frozen_objects_and_short_turns_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[int, float]] = []

    def look(*_: object) -> None:
        seen.append((gc.get_freeze_count(), sys.getswitchinterval()))

    monkeypatch.setattr(uvicorn.Server, "run", look)
    seconds = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.005)
        Server.run(Server.__new__(Server))
    finally:
        gc.unfreeze()
        sys.setswitchinterval(seconds)
    [(frozen, turn)] = seen
    assert frozen > 10_000
    assert turn == pytest.approx(SWITCH_SECONDS)


def halves(path: str, body: object, headers: dict[str, str]) -> tuple[bytes, bytes]:
    """Return a request without its last byte, and the last byte."""
    content = request(path, body, headers)
    return content[:-1], content[-1:]


def refused(port: int) -> bool:
    """Return whether the port is closed."""
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.e2e
@pytest.mark.parametrize("workers", ["1", "2"])
def test_metrics_have_a_port_and_balancers_time(
    workers: str, artifact: Artifact, tmp_path: Path
) -> None:
    """After SIGTERM the service is unready at once, still answers for the drain time, and serves
    metrics of the remaining work until it is done."""
    keys = tmp_path / "keys"
    keys.write_text("search:s3cret\n", encoding="utf-8")
    metrics, key = free_port(), {"authorization": "Bearer s3cret"}
    flags = ["--artifact", str(artifact.folder), "--engine", "fake", "--workers", workers]
    flags += ["--metrics-port", str(metrics), "--keys-file", str(keys)]
    body: dict[str, object] = {"inputs": "a"}
    with Service.of_headscope(*flags, "--drain-delay-seconds", "3") as service:
        service.wait_until_ready()
        assert ask(service.port, "/encode", body).status == 401
        for port, status in ((service.port, 200), (metrics, 421)):
            with Session(port) as session:
                assert session.ask("/encode", body, key).status == status
        assert ask(metrics, "/health/ready").status == 200
        assert b"headscope_requests_total" in ask(metrics, "/metrics").body
        service.send(signal.SIGTERM)
        service.wait_until(lambda: ask(service.port, "/health/ready").status == 503)
        with Session(service.port) as session:
            assert session.ask("/encode", body, key).status == 200
        head, rest = halves("/encode", body, key)
        with RawConnection(("127.0.0.1", service.port), 60) as slow:
            slow.send(head)
            service.wait_until(lambda: refused(service.port), 30)
            assert ask(metrics, "/health/ready").status == 503
            page = ask(metrics, "/metrics").body.decode()
            assert "headscope_ready 0.0" in page
            assert total(samples(page), "headscope_requests_in_flight [") == 2  # and the scrape
            with RawConnection(("127.0.0.1", metrics)):  # idle, as a scraper may keep one
                slow.send(rest)
                assert slow.receive().status == 200
                assert service.process.wait(60) in (0, -signal.SIGTERM)
        assert refused(metrics)
        reported = f"metrics and health, without a key: http://127.0.0.1:{metrics}/metrics"
        assert reported in service.log
