"""Server around the application, and the service in one process, as it starts."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import pytest
import uvicorn

from model.artifact.manifest import WEIGHTS, Artifact
from service.models.state import ServiceState
from service.process import single
from service.process.server import Server
from service.settings import Settings
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


APART = """
import sys
import service.process.single
web = {"fastapi", "uvicorn", "service.api", "service.app", "service.process.server"}
assert not web & sys.modules.keys(), web & sys.modules.keys()
service.process.single.import_web()
assert web <= sys.modules.keys(), web - sys.modules.keys()
from service.api.dashboard import files
assert files.cache_info().currsize == 0
"""


@pytest.mark.slow
def test_models_load_without_the_web_framework_and_the_dashboard_is_made_later() -> None:
    subprocess.run([sys.executable, "-c", APART], check=True, timeout=60)


def test_batches_are_measured_once_all_is_imported(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Measuring(Exception):
        """Raised by the stub in place of a state."""

    def build_state(
        _: Settings, artifacts: Sequence[Artifact], *, idle: Callable[[], object]
    ) -> ServiceState:
        assert [*artifacts] == [artifact]
        assert idle is single.import_web
        raise Measuring

    monkeypatch.setattr(single, "build_state", build_state)
    monkeypatch.setattr("service.system.logs.configure", lambda *_: None)
    monkeypatch.setattr("faulthandler.enable", lambda *_, **__: None)  # pytest's own stays
    with pytest.raises(Measuring):
        single.serve(Settings(port=free_port()), [artifact])


@pytest.mark.slow
def test_an_artifact_that_is_truncated_in_place_ends_the_service_with_a_reason(
    tiny_artifact: Artifact, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(tiny_artifact.folder, tmp_path / "copy"))
    with Service.of_headscope("--artifact", str(copy)) as service:
        service.wait_until_ready()
        os.truncate(copy / WEIGHTS, 0)
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{service.url}/encode", json={"inputs": "a b c"}, timeout=60)
        assert service.process.wait(60) == -signal.SIGBUS
        assert "Fatal Python error: Bus error" in service.log.splitlines()
