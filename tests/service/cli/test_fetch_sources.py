"""Models by name, revision and folder on the command line, and early refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.cli import main
from tests.hub import COMMIT, NAME, StandIn, running
from tests.service.cli.said import run_without


@pytest.fixture
def hub(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StandIn]:
    """Run a hub that the environment names, with an empty cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    with running({NAME: tiny_checkpoint, f"{NAME}@v1": tiny_checkpoint}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server


def fetched(capsys: pytest.CaptureFixture[str], *arguments: str) -> Path:
    assert main(["fetch", *arguments]) == 0
    return Path(capsys.readouterr().out.rstrip("\n"))


def test_revisions(
    hub: StandIn,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    snapshots = tmp_path / "home" / "hub" / "models--someone--small-encoder" / "snapshots"
    assert fetched(capsys, NAME) == snapshots / COMMIT
    other = snapshots / hub.commit_of(f"{NAME}@v1")
    assert fetched(capsys, f"{NAME}@v1") == other
    assert fetched(capsys, NAME, "--revision", "v1") == other
    monkeypatch.setenv("HEADSCOPE_REVISION", "v1")
    assert fetched(capsys, NAME) == snapshots / COMMIT
    monkeypatch.setenv("HEADSCOPE_MODEL", NAME)
    assert fetched(capsys) == other
    assert fetched(capsys, "--revision", "main") == snapshots / COMMIT
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetched(capsys) == other


def test_a_fetch_says_what_it_does(hub: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", NAME]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"headscope: fetching {NAME} from {hub.endpoint}"
    assert said[1].startswith("headscope: fetching model.safetensors, ")
    assert len(said) == 2


@pytest.mark.parametrize(
    "command", [["serve", "--model"], ["export", "--model"], ["export", "--out", "x", "--model"]]
)
def test_a_refusal_loads_nothing_heavy(command: list[str], tmp_path: Path) -> None:
    """PyTorch's import alone takes seconds."""
    (tmp_path / "config.json").write_text('{"model_type": "whisper"}')
    heavy = "torch huggingface_hub onnxruntime transformers"
    done = run_without(heavy, *command, str(tmp_path))
    assert done.returncode == 1
    line = f"headscope {command[0]}: {tmp_path} is an audio model, not a text encoder: its"
    assert done.stderr.startswith(line)
    assert len(done.stderr.splitlines()) == 1
