"""`headscope fetch`: the path of a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.cli import main


def test_fetch_says_where(small_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", str(small_checkpoint)]) == 0
    assert capsys.readouterr().out == f"{small_checkpoint}\n"


def test_the_environments_model_counts_for_every_command(
    small_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADSCOPE_MODEL", str(small_checkpoint))
    assert main(["fetch"]) == 0
    assert capsys.readouterr().out == f"{small_checkpoint}\n"
