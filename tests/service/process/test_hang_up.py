"""SIGHUP, which reloads the file of settings unless the terminal is gone."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from model.artifact.manifest import Artifact
from service.process import hang_up
from service.process.hang_up import HangUp
from testing.blocking import ask
from testing.process import Service


def test_a_lost_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = tmp_path / "tty"
    monkeypatch.setattr(hang_up, "TERMINAL", str(terminal))
    without = HangUp()
    terminal.touch()
    within = HangUp()
    assert not within.lost_terminal()
    terminal.unlink()
    assert within.lost_terminal()
    assert not without.lost_terminal()


@pytest.mark.e2e
@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_signal_reloads_the_file(workers: str, tiny_artifact: Artifact, tmp_path: Path) -> None:
    file, was = tmp_path / "headscope.toml", signal.signal(signal.SIGHUP, signal.SIG_DFL)
    table = f'engine = "fake"\n[model.a]\nartifact = "{tiny_artifact.folder}"\n'
    file.write_text(table)
    try:
        service = Service.of_headscope("--config", str(file), "--workers", workers)
    finally:
        signal.signal(signal.SIGHUP, was)
    with service:
        service.wait_until_ready()
        file.write_text(table + "max-length = 7\n")
        os.kill(service.process.pid, signal.SIGHUP)
        service.wait_until(lambda: "is reloaded: model.a: max-length" in service.log)
        service.wait_until(lambda: b'"max_input_length":7' in ask(service.port, "/info").body)
        file.write_text(table + "max-length = 'x'\n")
        os.kill(service.process.pid, signal.SIGHUP)
        service.wait_until(lambda: "is not reloaded: --config" in service.log)
        assert ask(service.port, "/encode", {"inputs": "a"}).status == 200
