"""Engine of builds: the pip of a build uses this machine's configuration of pip."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.image.engine import Engine, EngineError, argument, pip_options, pip_volumes


def test_options_of_pip_are_read_and_those_of_the_environment_win() -> None:
    listed = (
        ":env:.find-links='/wheels'\n"
        "global.cert='/a.crt'\n"
        "global.find-links='/other'\n"
        "global.extra-index-url='\\nfile:///one/simple\\nhttps://example.org/simple'\n"
        "install.no-compile='true'\n"
    )
    assert pip_options(listed) == {
        "cert": "/a.crt",
        "extra-index-url": " file:///one/simple https://example.org/simple",
        "find-links": "/wheels",
    }


def test_paths_that_options_name_are_mounted_read_only(tmp_path: Path) -> None:
    index = tmp_path / "index" / "simple"
    index.mkdir(parents=True)
    certificate = tmp_path / "a.crt"
    certificate.touch()
    configuration = tmp_path / "pip.conf"
    options = {"cert": str(certificate), "extra-index-url": f"file://{index} https://a.example/"}
    missing = {"find-links": str(tmp_path / "none"), "timeout": "180"}
    assert pip_volumes(options | missing, configuration) == [
        f"--volume={configuration}:/etc/pip.conf:ro",
        f"--volume={certificate}:{certificate}:ro",
        f"--volume={index.parent}:{index.parent}:ro",
    ]
    assert configuration.read_text().splitlines()[:2] == ["[global]", f"cert = {certificate}"]


def test_defaults_of_the_dockerfile_are_read() -> None:
    assert argument("PRECISION") == "fp32"
    assert argument("SOURCE_DATE_EPOCH").isdecimal()


def test_a_command_that_fails_tells_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "buildah"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho no such image >&2\nexit 125\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    with pytest.raises(EngineError, match=r"^buildah failed:\nno such image$"):
        Engine(tmp_path / "store").run("images")
