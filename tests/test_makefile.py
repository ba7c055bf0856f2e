"""Commands that the Makefile runs for each variable, by `make --dry-run`."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]


def commands(*words: str, **variables: str) -> list[str]:
    """Return the lines that make would run."""
    environment = {"PATH": os.environ["PATH"], **variables}
    command = ["make", "--dry-run", "--no-print-directory", *words]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "variables", "served"),
    [
        ([], {}, "headscope serve"),
        ([], {"HEADSCOPE_PORT": "9001"}, "headscope serve"),  # which reads that variable
        (["PORT=9002"], {}, "headscope serve --port 9002"),
        ([], {"PORT": "9003"}, "headscope serve --port 9003"),
    ],
)
def test_serve_takes_its_port_from_the_variables(
    words: list[str], variables: dict[str, str], served: str
) -> None:
    last = commands("--old-file", ".venv/.serving", "serve", *words, **variables)[-1]
    assert last.strip() == f".venv/bin/{served}"


@pytest.mark.parametrize(("runtime", "other"), [("cpu", "onnxruntime_gpu"), ("gpu", "onnxruntime")])
def test_one_onnx_runtime_is_installed_and_the_other_leaves(runtime: str, other: str) -> None:
    words = ["--what-if", "pyproject.toml", ".venv/.serving", f"ONNXRUNTIME={runtime}"]
    lines = commands(*words, "TORCH_OPTIONS=")
    (installs,) = (number for number, line in enumerate(lines) if ".[client,export," in line)
    wanted = f"--editable '.[client,export,{runtime}]' --editable clients/python"
    assert lines[installs].endswith(wanted)
    (leaves,) = (number for number, line in enumerate(lines) if "pip uninstall" in line)
    assert f"site-packages/{other}-*.dist-info" in "\n".join(lines[:installs])
    assert leaves < installs


def test_a_release_is_checked_and_nothing_is_uploaded() -> None:
    words = ["--old-file", "setup", "--old-file", ".venv-release/.installed", "release"]
    (check,) = commands(*words, "PYTHON=python3.13")
    assert "-m deploy.release.check --python python3.13 --artifact" in check
    assert "upload" not in check


def test_the_machine_chooses_the_runtime() -> None:
    printed = commands("--eval", "print-runtime: ; $(info $(ONNXRUNTIME))", "print-runtime")
    gpu = any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg"))
    assert printed[0] == ("gpu" if gpu and platform.machine() == "x86_64" else "cpu")
