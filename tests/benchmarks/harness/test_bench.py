"""Goals count only on a GPU at full size."""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness.bench import Bench, Options
from benchmarks.harness.figures import Figure, Goal
from benchmarks.harness.sizes import FULL, QUICK


def test_goals_count_on_a_gpu_at_full_size_alone(checkpoint: Path, tmp_path: Path):
    figure, goal = Figure("x", 1.0), Goal("≥", 2)

    def aim(device: str, sizes) -> Goal | None:
        return Bench(Options(str(checkpoint), device, sizes, tmp_path)).aim(figure, goal).goal

    assert aim("cuda", FULL) == goal
    assert aim("cuda", QUICK) is None
    assert aim("cpu", FULL) is None
