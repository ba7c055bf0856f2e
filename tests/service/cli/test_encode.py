"""`headscope encode` and `models` on the command line: options, exit codes, and messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from model.artifact.manifest import Artifact
from service.cli import main
from service.cli.encode import SETTINGS, command
from service.files.options import Encoding, FileOptions
from service.files.remote import PATIENT
from tests.service.harness import listening
from tests.service.repositories import add


@pytest.fixture
def arguments(artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the arguments of a run over three texts, the second of which is too long."""
    monkeypatch.setenv("HEADSCOPE_ENGINE", "fake")
    source = tmp_path / "in.csv"
    source.write_text(f"body\na cat\n{'word ' * 600}\na dog\n", encoding="utf-8")
    out = ["--out", str(tmp_path / "out.npy"), "--artifact", str(artifact.folder)]
    return ["encode", str(source), *out, "--column", "body", "--device", "cpu"]


def test_exit_codes(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith("headscope encode: ")
    assert "in.csv, row 2: the text has 602 tokens" in said
    assert said.count("\n") == 1
    assert main([*arguments, "--on-error", "skip"]) == 3
    assert "skipped" in capsys.readouterr().err
    assert len(np.load(tmp_path / "out.npy")) == 2
    assert main(arguments) == 2
    assert "out.npy already exists: --restart replaces it" in capsys.readouterr().err
    short = ["--restart", "--truncate", "--dimensions", "16", "--no-normalize"]
    assert main([*arguments, *short]) == 0
    assert np.load(tmp_path / "out.npy").shape == (3, 16)
    np.save(tmp_path / "ranges.npy", [[-1] * 16, [1] * 16])
    ranges = ["--vector-type", "int8", "--vector-ranges", str(tmp_path / "ranges.npy")]
    assert main([*arguments, *short, *ranges]) == 0
    assert np.load(tmp_path / "out.npy").dtype == np.int8
    np.save(tmp_path / "ranges.npy", [1, 2])
    assert main([*arguments, *short, *ranges]) == 2
    assert "ranges.npy has the shape (2,); [2, D] is needed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--url", "http://localhost:1"], "--url asks a service, which has its own --artifact"),
        (["--outputs", "token"], "did you mean tokens?"),
        (["--column", "text"], "has no column 'text': --column names one of body"),
        (["--dimensions", "0"], "--dimensions"),
        (
            ["--vector-type", "int8", "--outputs", "importance"],
            "a type of pooled vectors, not of imp",
        ),
        (["--vector-ranges", __file__], "test_encode.py is not a .npy file"),
    ],
)
def test_wrong_use(
    arguments: list[str], capsys: pytest.CaptureFixture[str], more: list[str], problem: str
) -> None:
    assert main([*arguments, *more]) == 2
    assert problem in capsys.readouterr().err


def test_a_service_that_does_not_answer_is_reported_before_the_retries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retries take most of a minute, before the line that ends the command."""
    hasty = replace(PATIENT, first_wait_seconds=0.001)
    monkeypatch.setattr("service.files.remote.PATIENT", hasty)
    source, url = tmp_path / "in.txt", "http://127.0.0.1:1"
    source.write_text("a cat\n", encoding="utf-8")
    assert main(["encode", str(source), "--out", str(tmp_path / "out.npy"), "--url", url]) == 1
    retrying, failed = capsys.readouterr().err.splitlines()
    assert retrying.startswith(f"headscope: no reply from {url}/info: ")
    assert retrying.endswith("; retrying 7 times, for about 0 s")
    assert failed.startswith(f"headscope encode: no reply from {url}/info: ")


def test_every_field_of_a_run_is_an_option() -> None:
    chosen = {field.name for kind in (FileOptions, Encoding) for field in fields(kind)}
    assert {one.name for one in command.params if one.name not in SETTINGS} == chosen - {"encoding"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, tiny_artifact: Artifact) -> Iterator[str]:
    root = tmp_path_factory.mktemp("repository")
    for place in ("a/1", "a/2", "org/b"):
        add(root, place, tiny_artifact)
    with listening([], [], models=root, admin_keys="admin") as (_, port):
        yield f"http://127.0.0.1:{port}"


def models(url: str, *words: str, key: str = "admin") -> int:
    return main(["models", *words, "--url", url, "--admin-key", key])


def test_load_swap_and_unload(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert models(url, "list") == 0
    assert capsys.readouterr().out.splitlines() == [
        "a@1      unavailable",
        "a@2      unavailable",
        "org/b@1  unavailable",
    ]
    assert models(url, "load", "a@1") == 0
    assert models(url, "load", "org/b") == 0
    assert models(url, "swap", "a") == 0
    assert {"a@2      ready", "org/b@1  ready"} <= {*capsys.readouterr().out.splitlines()}
    assert models(url, "unload", "org/b") == 0
    assert "org/b@1  ready" not in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["load"], 2, "load needs a NAME[@VERSION]"),
        (["list", "a"], 2, "list takes no name"),
        (["lod", "a"], 2, "did you mean load?"),
        (["load", "a@9"], 1, "404: a has no such version; it has: 1, 2"),
        (["swap", "org/b"], 1, "org/b is not loaded"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    url: str, words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    models(url, "unload", "org/b")
    capsys.readouterr()
    assert models(url, *words) == code
    assert says in capsys.readouterr().err


def test_the_key_is_needed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert models(url, "list", key="other") == 1
    assert "401" in capsys.readouterr().err
