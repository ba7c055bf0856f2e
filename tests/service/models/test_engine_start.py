"""Measured batches of engines, from which the first requests are forecast."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from model.artifact.manifest import Artifact
from model.config.encoder import EncoderConfig
from service.app import create_app
from service.engines.contract import Output, Task
from service.engines.fake import FakeEngine
from service.models.build import build_state
from service.models.state import state_of
from service.settings import Settings

FAKE = Settings(engine="fake")


def test_the_first_request_is_forecast_by_what_was_measured_at_start(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of texts and of maps, by whichever engine."""

    def slow(config: EncoderConfig) -> FakeEngine:
        return FakeEngine(config, token_seconds=0.0001)

    monkeypatch.setattr("service.models.engine_start.FakeEngine", slow)
    (model,) = state_of(create_app(FAKE, [artifact])).models
    scheduler = model.inference.engines.default
    assert scheduler.seconds_alone("attention", 512) > 0.05
    assert [tokens for tokens, _ in scheduler.engine.measured_maps] == [16, 128, 512]
    assert scheduler.lanes["attention"].map_pace.predict(512, 512) > 0.05
    for lane in scheduler.lanes.values():
        assert lane.cost == scheduler.engine.cost
        assert lane.cost.token == pytest.approx(0.0001, rel=0.5)


def test_batches_are_measured_while_the_process_is_idle(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    class Recorded(FakeEngine):
        def run(self, tasks: Sequence[Task]) -> list[Output]:
            events.append("batch")
            return super().run(tasks)

    monkeypatch.setattr("service.models.engine_start.FakeEngine", Recorded)
    state = build_state(FAKE, [artifact], idle=lambda: events.append("idle"))
    assert (events[0], events.count("idle"), events[-1]) == ("idle", 1, "batch")
    state.models.default.inference.close()
