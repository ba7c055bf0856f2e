"""Units of systemd, as its own checker reads them and as the service behaves."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from service.cli.terminal import Exit
from service.process.supervisor import LATE_SECONDS
from service.settings import Settings
from tests.deploy.tools import ROOT

UNITS = ROOT / "deploy" / "systemd"
MOST_EXPOSED = 2.0
"""Largest exposure that systemd-analyze may find, 0 … 10."""


class Unit(configparser.RawConfigParser):
    """Unit file, of whose repeated keys the last counts."""

    def __init__(self, name: str) -> None:
        super().__init__(strict=False, comment_prefixes=("#",), delimiters=("=",))
        self.read(UNITS / name, encoding="utf-8")

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def analyzed(*arguments: object) -> str:
    """Return what systemd-analyze prints; skip the test where systemd is not installed."""
    if not (program := shutil.which("systemd-analyze")):
        pytest.skip("systemd-analyze is not installed: it is part of Debian's package systemd")
    done = subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    for unit in UNITS.glob("headscope.*"):
        text = unit.read_text(encoding="utf-8")
        text = text.replace("/opt/headscope/bin/headscope", sys.executable)
        (tmp_path / unit.name).write_text(text, encoding="utf-8")
    paths = [tmp_path / name for name in ("headscope.service", "headscope.socket")]
    assert "headscope" not in analyzed("verify", *paths)
    exposure = analyzed("security", "--offline=yes", "--no-pager", paths[0]).splitlines()[-1]
    (level,) = re.findall(r"exposure level for headscope.service: ([\d.]+)", exposure)
    assert float(level) <= MOST_EXPOSED


def test_times_and_exit_codes_are_those_of_the_service() -> None:
    service, settings = Unit("headscope.service")["Service"], Settings()
    stop = settings.drain_delay_seconds + settings.drain_seconds + LATE_SECONDS
    assert stop < int(service["TimeoutStopSec"]) < stop + 30
    kept = [int(code) for code in service["RestartPreventExitStatus"].split()]
    assert kept == [Exit.WRONG_USE, Exit.UNVERIFIED]
    assert service["Type"] == "notify"
    listen = Unit("headscope.socket")["Socket"]["ListenStream"]
    assert listen == f"{settings.host}:{settings.port}"
