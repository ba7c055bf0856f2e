"""What a machine is told apart by."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from service import system


def test_the_processors_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "cpuinfo"
    monkeypatch.setattr(system, "CPU_INFO", info)
    assert system.processor_name() == platform.machine()
    info.write_text("processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD: EPYC\n\nprocessor\t: 1\n")
    assert system.processor_name() == "AMD: EPYC"
    info.write_text("processor\t: 0\nBogoMIPS\t: 50.00\n")  # as on ARM
    assert system.processor_name() == platform.machine()


def test_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "GPU_DEVICES", (tmp_path / "a", tmp_path / "b"))
    assert not system.may_have_gpu()
    (tmp_path / "b").touch()
    assert system.may_have_gpu()
