"""What the service says of its own distribution, and of packages that are not installed."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from model.artifact.manifest import Artifact
from service.cli import main
from service.system.distribution import EXTRAS, NAME, version

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_name_and_version_are_the_project_s() -> None:
    assert (NAME, version()) == (PROJECT["name"], PROJECT["version"])


def test_every_extra_that_is_advised_is_there_and_brings_the_module() -> None:
    for module, extra in EXTRAS.items():
        assert any(
            requirement.startswith(module)
            for requirement in PROJECT["optional-dependencies"][extra]
        ), module
    required = {re.split(r"[^\w-]", requirement)[0] for requirement in PROJECT["dependencies"]}
    assert not required & EXTRAS.keys()


MISSING = "which is not installed: pip install 'headscope-server[{}]'"


@pytest.mark.parametrize(
    ("module", "command", "says"),
    [
        ("torch", "serve --model {small}", "exporting {small} needs torch, " + MISSING),
        ("onnxscript", "serve --model {small}", "exporting {small} needs onnxscript, " + MISSING),
        ("torch", "export --model {small}", "an export needs torch, " + MISSING),
        ("onnx", "verify --artifact {artifact}", "a verification needs onnx, " + MISSING),
        (
            "torch",
            "serve --artifact {artifact} --engine torch",
            "an answer by PyTorch needs torch, " + MISSING,
        ),
        ("torch", "serve --artifact {artifact} --fallback torch", "needs torch, " + MISSING),
        ("torch", "serve --artifact {artifact} --verify-share 0.5", "needs torch, " + MISSING),
        ("openvino", "export --precision int8", "--precision int8 needs openvino, " + MISSING),
    ],
)
def test_a_missing_package_is_one_line_that_names_its_extra(
    module: str,
    command: str,
    says: str,
    artifact: Artifact,
    small_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"artifact": artifact.folder, "small": small_checkpoint}
    monkeypatch.setitem(sys.modules, module, None)
    assert main(command.format(**places).split()) == 1
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.endswith(says.format(EXTRAS[module], **places))
