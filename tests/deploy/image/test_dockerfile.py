"""Properties of the images that follow from the Dockerfile's text."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import get_args

import pytest

from deploy.image.engine import argument, base_name
from deploy.image.lock import LOCKS, SERVING
from model.config.precision import Precision
from model.runtimes.registry import runtime_of
from model.vendor_telemetry import VARIABLES
from service.settings import Settings

ROOT = Path(__file__).resolve().parents[3]
IMAGES = [*SERVING]


@dataclass
class Stage:
    """Stage of the Dockerfile."""

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
    """Return a stage and the stages it is built on, the first one first."""
    stages = []
    while name in STAGES:
        stages.insert(0, STAGES[name])
        name = STAGES[name].parent
    return stages


def values(image: str, keyword: str) -> list[str]:
    """Return the values of one instruction in an image's lineage, the effective one last."""
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
    assert STAGES.keys() >= {
        f"{kind}{image}" for image in IMAGES for kind in ("", "bare-", "sbom-")
    }


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_has_its_own_packages_and_the_artifact(image: str) -> None:
    assert environment(image)["HEADSCOPE_DEVICE"] == ("cuda" if image == "cuda" else "cpu")
    *bare, artifact = values(image, "COPY")
    assert bare == values(f"bare-{image}", "COPY")
    assert bare == [
        f"--from=packages-{image} /venv /venv",
        f"--from=packages-{image} /sbom /sbom",
        "--from=package /package /venv",
    ]
    assert values(f"sbom-{image}", "COPY") == [f"--from=packages-{image} /sbom /"]
    kept = "/artifact" if image == "torch" else "/serving"  # without PyTorch's weights
    assert artifact == f"--from={source_of(image)} {kept} /artifact"


def runtimes(image: str) -> set[str]:
    """Return the runtimes whose libraries are in an image's lock."""
    packages = set(re.findall(r"^[\w-]+", (LOCKS / f"{image}.txt").read_text(), re.MULTILINE))
    return {"onnx"} | ({"openvino"} & packages)


def source_of(image: str) -> str:
    """Return the stage from which an image's artifact is copied."""
    return "artifact" if "openvino" in runtimes(image) else "artifact-for-onnxruntime"


@pytest.mark.parametrize("precision", get_args(Precision))
@pytest.mark.parametrize("image", IMAGES)
def test_a_precision_that_an_image_cannot_serve_is_refused_before_it_is_exported(
    image: str, precision: Precision
) -> None:
    """The stages of the artifact check the precision before anything is copied into them."""
    early = [
        rest
        for stage in lineage(source_of(image))
        if stage.name.endswith("onnxruntime")
        for keyword, rest in stage.instructions
        if keyword == "RUN"
    ]
    done = [
        subprocess.run(
            ["sh", "-c", script],
            env={"PRECISION": precision},
            capture_output=True,
            text=True,
            check=False,
        )
        for script in early
    ]
    served = runtime_of(precision) in runtimes(image)
    assert all(one.returncode == 0 for one in done) == served
    reported = "".join(one.stderr for one in done)
    assert ("build --target openvino or torch" in reported) != served
    assert len(reported.splitlines()) == (not served)
    order = [*STAGES]
    if early:
        assert order.index("for-onnxruntime") < order.index("artifact")
        assert STAGES["artifact-for-onnxruntime"].parent == "for-onnxruntime"


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
def test_an_image_switches_telemetry_off_for_every_process(image: str) -> None:
    variables = {name: value for name, value in VARIABLES.items() if not name.startswith("RAY_")}
    assert environment(image).items() >= variables.items()


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
    assert values(image, "COPY")[-1].endswith(f" {folder}")
    assert f"mkdir {folder}" in " ".join(values(image, "RUN"))  # where one is mounted


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_installs_nothing_itself(image: str) -> None:
    # tools and caches stay in the stages from which an installation is copied
    assert not re.search(r"\b(pip|apt-get|curl|wget)\b", " ".join(values(image, "RUN")))
    assert all(copy.startswith("--from=") for copy in values(image, "COPY"))
    assert not any(values(image, keyword) for keyword in ("ADD", "VOLUME", "SHELL", "ONBUILD"))


def test_every_installation_is_of_hashed_packages() -> None:
    """The only exceptions are our own packages, which use no index."""
    runs = [rest for s in STAGES.values() for key, rest in s.instructions if key == "RUN"]
    script = re.sub(r"\\\n\s*", "", (ROOT / "deploy/image/install").read_text())
    commands = [command for run in runs for command in run.split("&&")] + script.splitlines()
    pip = [
        command for command in commands if re.search(r"\bpip (install|wheel|download)\b", command)
    ]
    assert len(pip) == 6
    assert all("--no-deps" in command for command in pip)
    loose = [command for command in pip if "--require-hashes" not in command]
    assert len(loose) == 2
    assert all("--no-index" in command for command in loose)


def test_the_base_is_named_by_digest() -> None:
    name, _, digest = argument("BASE").partition("@")
    assert base_name() == f"docker.io/library/{name}"
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", digest)


def test_a_stage_is_built_on_the_one_base() -> None:
    parents = {stage.parent for stage in STAGES.values()}
    assert parents <= {"${BASE}", "scratch", *STAGES}
    assert [stage.name for stage in STAGES.values() if stage.parent == "${BASE}"] == ["base"]


def test_the_labels_are_the_project_s() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    labels = dict(
        re.findall(r'org\.opencontainers\.image\.([\w.]+)="([^"]*)"', values("cpu", "LABEL")[-1])
    )
    assert labels == {
        "title": next(iter(project["scripts"])),
        "description": project["description"],
        "licenses": project["license"],
        "version": project["version"],
        "revision": "${REVISION}",
        "base.name": "${BASE}",
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
    sent = {rule[1:] for rule in rules if rule.startswith("!")}
    assert {Path(path) for path in sent} == {
        Path(path).parent if Path(path).suffix == ".txt" and "locks" in path else Path(path)
        for path in copied
    }
    assert {"model", "service", "clients/python"} <= copied


@pytest.fixture
def endpoint() -> Iterator[HTTPServer]:
    """Run a server that answers every GET with its `status` and records the path."""

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
