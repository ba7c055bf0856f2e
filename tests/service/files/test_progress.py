"""Progress: occasional lines, and a bar on a terminal."""

from __future__ import annotations

import io
import sys

import pytest

from service.files.progress import Progress


def test_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """The rate counts this run only, not an earlier one."""
    now = [0.0]
    with Progress(1000, 400, lambda: now[0]) as progress:
        now[0] = 9.9
        progress.advance(10)
        now[0] = 10.0
        progress.advance(90)
        now[0] = 12.0
        progress.advance(1)
    line = "headscope: 500 of 1,000 texts, 10 texts/s, 00:50 left\n"
    assert capsys.readouterr().err == line


def test_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress(10, 4, unit="pictures") as progress:
        progress.say("skipped a line")
        progress.advance(6)
    shown = terminal.getvalue()
    assert "10/10" in shown
    assert " pictures/s" in shown
    assert "headscope: skipped a line\n" in shown
