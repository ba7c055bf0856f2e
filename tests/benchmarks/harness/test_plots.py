"""Equal numbers give equal plots."""

from __future__ import annotations

import pytest

from benchmarks.harness.rows import summarise
from tests.benchmarks.harness.ways import BASES, SAMPLES, WAYS


@pytest.mark.slow
def test_figures_are_the_same_bytes_for_the_same_numbers(tmp_path):
    rows = summarise(WAYS, SAMPLES, BASES)
    plots = pytest.importorskip("benchmarks.harness.plots", exc_type=ImportError)
    first = [path.read_bytes() for path in plots.draw(rows, tmp_path / "first")]
    again = [path.read_bytes() for path in plots.draw(rows, tmp_path / "again")]
    assert len(first) == 3
    assert first == again
