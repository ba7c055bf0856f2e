"""The image, built and served by a docker engine."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[3]


def docker(*arguments: str) -> str:
    command = ["docker", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def engine() -> None:
    try:
        subprocess.run(["docker", "info"], check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"no docker engine answers here ({type(error).__name__})")


@pytest.mark.docker
@pytest.mark.usefixtures("engine")
def test_the_image_serves_under_compose_s_restrictions() -> None:
    docker("build", "--tag", "headscope:test", ".")
    restrictions = "--read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges"
    publish = "--publish 127.0.0.1::8000"
    container = docker(
        "run", "--detach", *restrictions.split(), *publish.split(), "headscope:test"
    ).strip()
    try:
        url = f"http://{docker('port', container, '8000').split()[0]}"
        deadline = time.monotonic() + 120
        while docker("inspect", "--format", "{{.State.Health.Status}}", container) != "healthy\n":
            assert time.monotonic() < deadline, docker("logs", container)
            time.sleep(0.5)
        reply = httpx.post(f"{url}/encode", json={"inputs": "Hello world"})
        assert reply.status_code == 200
        assert sum(x * x for x in reply.json()["results"][0]["pooled"]) == pytest.approx(1)
        docker("stop", "-t", "40", container)
        assert docker("inspect", "--format", "{{.State.ExitCode}}", container) == "0\n"
    finally:
        docker("rm", "--force", container)
