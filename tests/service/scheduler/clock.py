"""Fake clock that a test moves."""

from __future__ import annotations

import pytest


class FakeClock:
    """`time.monotonic` of the scheduler and of measured batches, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for module in (
            "service.engines.measuring",
            "service.scheduler.scheduler",
            "service.scheduler.lanes",
            "service.scheduler.outputs",
            "service.scheduler.queue",
        ):
            monkeypatch.setattr(f"{module}.time", self)

    def monotonic(self) -> float:
        return self.now
