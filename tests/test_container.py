"""The images: what their text promises, and, where there is a docker engine, what they do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ("cpu", "cuda")


@dataclass
class Stage:
    """One stage of the Dockerfile."""

    name: str
    parent: str
    instructions: list[tuple[str, str]] = field(default_factory=list)


def read_stages() -> list[Stage]:
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    stages: list[Stage] = []
    for line in text.replace("\\\n", " ").splitlines():
        keyword, _, rest = " ".join(line.split()).partition(" ")
        if keyword == "FROM":
            parent, _, name = rest.partition(" AS ")
            stages.append(Stage(name, parent))
        elif stages and keyword:
            stages[-1].instructions.append((keyword, rest))
    return stages


STAGES = {stage.name: stage for stage in read_stages()}


def lineage(name: str) -> list[Stage]:
    """A stage and those it is built on, the first one first."""
    stages = []
    while name in STAGES:
        stages.insert(0, STAGES[name])
        name = STAGES[name].parent
    return stages


def values(image: str, keyword: str) -> list[str]:
    """What every instruction of a kind in an image's lineage says, the effective one last."""
    return [
        rest for stage in lineage(image) for found, rest in stage.instructions if found == keyword
    ]


def environment(image: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", " ".join(values(image, "ENV"))))


def health_command() -> list[str]:
    command = json.loads(values("cpu", "HEALTHCHECK")[-1].partition(" CMD ")[2])
    assert command[0] == "python"
    return [sys.executable, *command[1:]]


def test_the_default_image_is_the_cpu_one() -> None:
    assert list(STAGES)[-1] == "cpu"
    assert environment("cpu")["HEADSCOPE_DEVICE"] == "cpu"
    assert environment("cuda")["HEADSCOPE_DEVICE"] == "cuda"
    assert not any("cuda" in copy for copy in values("cpu", "COPY"))


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_as_a_fixed_user_who_is_not_root(image: str) -> None:
    user, group = map(int, values(image, "USER")[-1].split(":"))
    assert user > 0
    assert group > 0
    accounts = " ".join(values(image, "RUN"))
    assert f"groupadd --gid {group} " in accounts
    assert f"useradd --uid {user} --gid {group} " in accounts


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_the_service_without_a_shell(image: str) -> None:
    # exec form: the service itself is process 1 and gets the signals
    assert json.loads(values(image, "ENTRYPOINT")[-1]) == ["headscope"]
    assert json.loads(values(image, "CMD")[-1]) == ["serve"]


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_sets_what_the_service_reads(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {k: v for k, v in environment(image).items() if k.startswith("HEADSCOPE_")}
    for name, value in ours.items():
        assert name.removeprefix("HEADSCOPE_").lower() in Settings.model_fields, name
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert settings.host == "0.0.0.0"
    assert values(image, "EXPOSE") == [str(settings.port)]
    (folder,) = settings.artifact
    assert f"--from=artifact /artifact {folder}" in values(image, "COPY")


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_installs_nothing_itself(image: str) -> None:
    # the tools and caches of an installation stay in the stages it is copied from
    assert not re.search(r"\b(pip|apt-get|curl|wget)\b", " ".join(values(image, "RUN")))
    assert all(copy.startswith("--from=") for copy in values(image, "COPY"))


def test_every_installation_is_pinned() -> None:
    runs = [rest for s in STAGES.values() for key, rest in s.instructions if key == "RUN"]
    commands = [command for run in runs for command in run.split("&&")]
    installs = [command for command in commands if "pip install" in command]
    assert len(installs) == 4
    for install in installs:
        ours = install.strip() == "pip install --no-deps --prefix /package ."
        assert "--constraint constraints.txt" in install or ours, install


def test_the_labels_are_the_project_s() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    labels = dict(
        re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', values("cpu", "LABEL")[-1])
    )
    assert labels == {
        "title": next(iter(project["scripts"])),
        "description": project["description"],
        "licenses": project["license"],
        "version": project["version"],
    }


def test_what_is_copied_is_there_and_is_all_that_the_build_sees() -> None:
    copied = {
        source
        for stage in STAGES.values()
        for keyword, rest in stage.instructions
        if keyword == "COPY" and not rest.startswith("--from=")
        for source in rest.split()[:-1]
    }
    assert all((ROOT / source).exists() for source in copied)
    first, *rules = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line[:1] not in ("#", "")
    ]
    assert first == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == copied
    assert {"model", "service"} <= copied
    assert not any(source.startswith("clients") for source in copied)


@pytest.fixture
def endpoint() -> Iterator[HTTPServer]:
    """Answers every GET with its `status`, and remembers the path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.server.path = self.path
            self.send_response(self.server.status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def healthy(port: int) -> bool:
    variables = os.environ | {"HEADSCOPE_PORT": str(port), "http_proxy": "http://127.0.0.1:1"}
    return subprocess.run(health_command(), env=variables, check=False, timeout=30).returncode == 0


@pytest.mark.parametrize(("status", "expected"), [(200, True), (503, False)])
def test_the_health_check_says_what_the_service_says(
    endpoint: HTTPServer, status: int, expected: bool
) -> None:
    endpoint.status = status
    assert healthy(endpoint.server_port) == expected
    assert endpoint.path == "/health/ready"


def test_the_health_check_fails_where_nobody_listens(endpoint: HTTPServer) -> None:
    endpoint.shutdown()
    endpoint.server_close()
    assert not healthy(endpoint.server_port)


@pytest.fixture
def compose() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_compose_gives_a_service_no_more_than_it_needs(compose: dict[str, Any], name: str) -> None:
    service = compose[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert [mount.partition(":")[0] for mount in service["tmpfs"]] == [environment("cpu")["HOME"]]
    assert service["restart"] == "unless-stopped"
    assert re.fullmatch(r"\d+g", service["mem_limit"])
    assert not {"privileged", "cap_add", "network_mode", "pid", "ipc", "volumes"} & set(service)


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_compose_waits_for_running_requests(compose: dict[str, Any], name: str) -> None:
    grace = int(compose[name]["stop_grace_period"].removesuffix("s"))
    assert grace > Settings.model_fields["drain_seconds"].default


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_compose_hands_the_keys_on(compose: dict[str, Any], name: str) -> None:
    assert compose[name]["environment"] == ["HEADSCOPE_API_KEYS"]


def test_compose_serves_on_a_cpu_unless_told_otherwise(compose: dict[str, Any]) -> None:
    assert [name for name, service in compose.items() if "profiles" not in service] == ["cpu"]
    assert compose["cpu"]["ports"] == ["127.0.0.1:8000:8000"]
    assert compose["cpu"]["build"] == {"context": ".", "target": "cpu"}


def test_compose_gives_the_gpu_service_a_gpu(compose: dict[str, Any]) -> None:
    gpu = compose["gpu"]
    assert gpu["profiles"] == ["gpu"]
    assert gpu["build"]["target"] == "cuda"
    assert gpu["build"]["target"] in STAGES
    [device] = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    assert not set(gpu["ports"]) & set(compose["cpu"]["ports"])


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
