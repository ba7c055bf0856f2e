"""The service's own distribution, and errors for packages that are not installed."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from model.artifact.manifest import Artifact
from service.cli import main
from service.system import distribution
from service.system.distribution import EXTRAS, NAME, install_command, require, version

ROOT = Path(__file__).resolve().parents[3]
NAMES = {"PIL": "pillow"}
"""Top-level module → its distribution, if that has another name."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_name_and_version_are_the_project_s() -> None:
    assert (NAME, version()) == (PROJECT["name"], PROJECT["version"])


def test_a_checkout_that_is_not_installed_has_the_version_of_its_project(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(distribution, "NAME", "a-distribution-that-nobody-installs")
    assert version() == PROJECT["version"]
    assert install_command("cpu").startswith("pip install")


def test_every_extra_that_is_advised_is_there_and_brings_the_module() -> None:
    for module, extra in EXTRAS.items():
        assert any(
            requirement.startswith(NAMES.get(module, module))
            for requirement in PROJECT["optional-dependencies"][extra]
        ), module
    required = {re.split(r"[^\w-]", requirement)[0] for requirement in PROJECT["dependencies"]}
    assert not required & EXTRAS.keys()


@pytest.fixture
def installed_as(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None, Path], None]:
    """Return `installed_as(record, prefix)`, which sets `direct_url.json` and the environment."""

    class Installed:
        def __init__(self, record: str | None) -> None:
            self.record = record

        version = PROJECT["version"]

        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return self.record

    def install(record: str | None, prefix: Path) -> None:
        monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Installed(record))
        monkeypatch.setattr(sys, "prefix", str(prefix))

    return install


EDITABLE = '{"dir_info": {"editable": true}, "url": "file:///home/a%20b/headscope"}'
WHEEL = '{"archive_info": {}, "url": "file:///tmp/headscope_server-0.3.0-py3-none-any.whl"}'
PIP = f"pip install 'headscope_server-{PROJECT['version']}-py3-none-any.whl[export,cpu]'"


@pytest.mark.parametrize(
    ("record", "prefix", "command"),
    [
        (EDITABLE, "/home/a b/headscope/.venv", "make -C '/home/a b/headscope' setup"),
        (EDITABLE, "/home/a b/other", "pip install --editable '/home/a b/headscope[export,cpu]'"),
        (WHEEL, "/home/a b/headscope/.venv", PIP),
        (None, "/usr", PIP),
    ],
)
def test_the_command_is_of_how_it_was_installed(
    installed_as: Callable[[str | None, Path], None],
    record: str | None,
    prefix: str,
    command: str,
) -> None:
    installed_as(record, Path(prefix))
    assert install_command("export", "cpu") == command


def test_the_client_comes_from_its_own_wheel_or_folder(
    installed_as: Callable[[str | None, Path], None],
) -> None:
    """Without it pip would look for `headscope` in an index, where it may be anybody's."""
    installed_as(WHEEL, Path("/usr"))
    version = PROJECT["version"]
    assert install_command("client") == (
        f"pip install headscope-{version}-py3-none-any.whl "
        f"'headscope_server-{version}-py3-none-any.whl[client]'"
    )
    installed_as(EDITABLE, Path("/usr"))
    assert install_command("client") == (
        "pip install --editable '/home/a b/headscope/clients/python' "
        "--editable '/home/a b/headscope[client]'"
    )


def test_no_page_and_no_message_installs_by_a_name_that_nobody_has_claimed() -> None:
    by_name = re.compile(
        r"pip install[^`\n]*[ '\"=]headscope(-server)?(\[|==|[ '\"`]|$)", re.MULTILINE
    )
    assert by_name.search("pip install 'headscope-server[client]'")
    files = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "clients/python/README.md"]
    files += [
        path for place in ("model", "service", "clients") for path in (ROOT / place).rglob("*.py")
    ]
    assert [path for path in files if by_name.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("gpu", "machine", "extra"),
    [(False, "x86_64", "cpu"), (True, "x86_64", "gpu"), (True, "aarch64", "cpu")],
)
def test_all_missing_modules_are_told_at_once(
    installed_as: Callable[[str | None, Path], None],
    monkeypatch: pytest.MonkeyPatch,
    gpu: bool,
    machine: str,
    extra: str,
) -> None:
    installed_as(None, Path("/usr"))
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(distribution, "may_have_gpu", lambda: gpu)
    for module in ("onnxruntime", "torch", "onnx"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match="this needs") as refused:
        require("this", "onnxruntime", "torch", "onnx", also=["default-model"])
    assert str(refused.value) == (
        "this needs onnxruntime, torch and onnx, which are not installed: "
        f"pip install 'headscope_server-{PROJECT['version']}-py3-none-any.whl"
        f"[{extra},export,default-model]'"
    )


@pytest.mark.parametrize(("system", "machine"), [("linux", "aarch64"), ("darwin", "arm64")])
def test_no_command_is_advised_where_the_extra_installs_nothing(
    system: str, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = Requirement(*PROJECT["optional-dependencies"]["openvino"]).marker
    assert marker is not None
    assert not marker.evaluate({"sys_platform": system, "platform_machine": machine})
    assert marker.evaluate({"sys_platform": "linux", "platform_machine": "x86_64"})
    monkeypatch.setitem(sys.modules, "openvino", None)
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(ValueError, match=f"openvino.* and this is {system} {machine}: use fp32"):
        require("this", "openvino")


MISSING = "which is not installed: {}"


@pytest.mark.parametrize(
    ("module", "command", "says"),
    [
        ("torch", "serve --model {small}", "exporting {small} needs torch, " + MISSING),
        ("onnxscript", "serve --model {small}", "exporting {small} needs onnxscript, " + MISSING),
        ("transformers", "serve --model {small}", "{small} needs transformers, " + MISSING),
        ("torch", "export --model {small}", "exporting {small} needs torch, " + MISSING),
        ("onnx", "verify --artifact {artifact}", "a verification needs onnx, " + MISSING),
        (
            "torch",
            "serve --artifact {artifact} --engine torch",
            "an answer by PyTorch needs torch, " + MISSING,
        ),
        ("torch", "serve --artifact {artifact} --fallback torch", "needs torch, " + MISSING),
        ("torch", "serve --artifact {artifact} --verify-share 0.5", "needs torch, " + MISSING),
        ("openvino", "export --precision int8", "--precision int8 needs openvino, " + MISSING),
        ("headscope", "encode a --out b.npy --url http://c", "--url needs headscope, " + MISSING),
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
    assert line.endswith(says.format(install_command(EXTRAS[module]), **places))
