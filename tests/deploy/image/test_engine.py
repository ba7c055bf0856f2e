"""Builds of the images: their engine, two of them compared, and one served."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from deploy.image.engine import Engine, EngineError, argument, pip_options, pip_volumes
from deploy.image.measure import size
from deploy.image.reproduce import differing, digests


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


def tree(folder: Path, **files: str) -> Path:
    (folder / "etc").mkdir(parents=True)
    for name, text in files.items():
        (folder / "etc" / name).write_text(text)
    return folder


def test_what_differs_is_named(tmp_path: Path) -> None:
    one = tree(tmp_path / "one", same="a", changed="b", gone="c")
    other = tree(tmp_path / "other", same="a", changed="d", new="e")
    (other / "etc" / "link").symlink_to("/etc/hostname")
    os.utime(other / "etc" / "same", (0, 0))
    found = differing(digests(one), digests(other))
    assert found == ["etc/changed", "etc/gone", "etc/new"]
    # FIPS 180-4's example: the digest of "abc"
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digests(tree(tmp_path / "third", abc="abc")) == {"etc/abc": abc}


def test_a_file_of_several_names_counts_once(tmp_path: Path) -> None:
    root = tree(tmp_path / "root", one="12345", other="123")
    (root / "again").hardlink_to(root / "etc" / "one")
    (root / "link").symlink_to("etc/one")
    assert size(root) == 8


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
