"""Damaged picture files never end or block the process that opens them."""

from __future__ import annotations

import sys

import pytest

from benchmarks import image_files
from model.images.opening import ImageLimits

LIMITS = ImageLimits(10_000_000)
READY = "import sys, time; print('ready'); print('0.1\\t2048\\topened', flush=True); "


def test_a_few_hundred_damaged_files() -> None:
    outcomes = image_files.run(range(300), LIMITS)
    assert (outcomes.crashes, outcomes.hangs) == ([], [])
    assert outcomes.counts.total() == 300
    assert outcomes.counts[image_files.OPENED] > 20
    assert len(outcomes.counts) > 8  # reasons
    assert outcomes.peak_bytes < 300 * 2**20
    assert max(outcomes.seconds) < 5


@pytest.mark.parametrize("end", ["sys.exit(3)", "time.sleep(60)"])
def test_crashes_and_hangs_are_counted(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_files, "CHILD", (sys.executable, "-c", READY + end))
    monkeypatch.setattr(image_files, "HANG_SECONDS", 0.5)
    outcomes = image_files.run(range(7, 9), LIMITS)
    assert outcomes.counts == {image_files.OPENED: 1}
    assert outcomes.crashes == ([8] if "exit" in end else [])
    assert outcomes.hangs == ([8] if "sleep" in end else [])
    assert outcomes.peak_bytes == 2048
